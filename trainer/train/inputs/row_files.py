"""Memory for rows: of this process, or of a file that is mapped into it, for more rows than memory.

The system writes a mapped file's pages to the disk where memory is short, and reads them again. The file has
no name once it is mapped, so that nothing is left of it when its tensor, or this process, is gone.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from trainer.base.errors import DataError


def empty_rows(count: int, width: int, *, folder: Path | None) -> Tensor:
    """Return rows (count, width) float32 without values; in a file of `folder` if there is one.

    Raises DataError if the disk has no room for it.
    """
    if folder is None or not count * width:
        return torch.empty(count, width)
    handle, name = tempfile.mkstemp(prefix="rows-", dir=folder)
    try:
        _take_room(handle, count * width * 4)  # now, and not when a page is written: that kills
        return torch.from_file(name, shared=True, size=count * width).view(count, width)
    except OSError as error:
        raise DataError(
            f"{count:,} rows need {count * width * 4 / 2**30:.1f} GiB in {folder}",
            why=str(error.strerror),
            do="Take a machine with a larger disk or more memory, or set data.bars lower.",
        ) from error
    finally:
        os.close(handle)
        Path(name).unlink()


def _take_room(handle: int, size: int) -> None:
    """Take `size` bytes of the disk for an empty file. Raises OSError without room."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(handle, 0, size)
        return
    zeros = bytes(1 << 20)  # macOS has no such call
    while size:
        size -= os.write(handle, zeros[:size])
