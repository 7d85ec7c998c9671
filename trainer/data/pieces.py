"""Long columns in pieces that fit the cache: what is computed of them never lies in memory as a whole."""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Iterator

import numpy as np

PIECE = 1 << 14  # rows: float64 of a dozen columns fit a core's cache (measured 2026-11-27)


def pieces(rows: int, *, size: int = PIECE) -> Iterator[slice]:
    """Yield so many rows as slices of `size` rows; the last may be shorter."""
    for start in range(0, rows, size):
        yield slice(start, min(start + size, rows))


def rows_where(rows: int, test: Callable[[slice], np.ndarray]) -> np.ndarray:
    """Return the rows (K,) int64, ascending, of which `test`, given a slice of them, returns true."""
    found = [np.flatnonzero(test(part)) + part.start for part in pieces(rows)]
    return np.concatenate(found) if found else np.empty(0, dtype=np.int64)


def long_array(shape: tuple[int, ...], kind: type[np.generic]) -> np.ndarray:
    """Return an array of zeros in pages of the usual size. Numpy asks for huge ones, which a virtual machine
    may have to get from its host first: that took five times as long (2026-11-27).
    """
    size = math.prod(shape) * np.dtype(kind).itemsize
    memory = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(memory, dtype=kind, count=math.prod(shape)).reshape(shape)
