"""Array files: the bars of one symbol, copied in parts from a candle file of many symbols into a scratch
folder.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from trainer.data.read.sources import Series

ARRAY = ".npy"


def append(path: Path, part: Series) -> None:
    """Append bars to an array file; `close` writes their number afterwards."""
    row = _row(len(part.values))
    rows = np.empty(len(part.timestamp), dtype=row)
    rows["timestamp"], rows["values"] = part.timestamp, part.values.T
    with path.open("ab") as file:
        if not file.tell():
            _write_header(file, row, 0)
        rows.tofile(file)


def close(path: Path, *, values: int, bars: int) -> None:
    """Write the header of an array file with `bars` bars of `values` values each."""
    with path.open("r+b") as file:
        _write_header(file, _row(values), bars)


def _row(width: int) -> np.dtype[Any]:
    """Return the dtype of a row: a timestamp and `width` values."""
    return np.dtype([("timestamp", "<i8"), ("values", "<f8", (width,))])


def _write_header(file: BinaryIO, row: np.dtype[Any], bars: int) -> None:
    """Write the header of an array file. Numpy pads it, so that it can be overwritten once the number of rows
    is known.
    """
    np.lib.format.write_array_header_1_0(
        file, {"descr": np.lib.format.dtype_to_descr(row), "fortran_order": False, "shape": (bars,)}
    )


def load(path: Path) -> np.ndarray:
    """Return the rows of an array file, memory-mapped."""
    return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
