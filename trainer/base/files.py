"""Write a file so that its path has either all of the new content or what it had before."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a new path beside `path` to write to. On success rename it to `path`, on failure remove it; make
    missing folders.

    A link at `path` is replaced, not followed. Processes may write the same path at once: the last one wins.
    Nothing is flushed to the disk: after a power failure the file may be empty, so readers check a hash or
    start over.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    partial.unlink(missing_ok=True)  # of a process that was killed, or a link
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
