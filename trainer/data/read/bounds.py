"""Bounds on the rows and bytes that a candle file unpacks to, checked so that a small file can't fill the
memory.

A parquet file's footer says how many values and bytes each column has; a compressed CSV is counted while it
is read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from trainer.base.errors import DataError

# Arrow's errors for malformed files. DataError is none of these.
UNREADABLE = (pa.ArrowException, OSError, EOFError, ValueError, KeyError)
MOST_ROWS = 1_000_000_000  # of a file; data.bars has the same bound
MOST_COLUMNS = 10_000
FREE_BYTES = 1 << 30  # unpacked, for a file of any size
MOST_TIMES = 200  # unpacked bytes per byte of the file; candles need 3 to 20
_VALUE_BYTES = 8


def check_footer(path: Path, metadata: Any) -> None:
    """Raise DataError for a parquet file with too many rows or columns for candles, or that unpacks to too
    many bytes.
    """
    if metadata.num_rows > MOST_ROWS or metadata.num_columns > MOST_COLUMNS:
        raise _too_large(path, f"it has {metadata.num_rows:,} rows and {metadata.num_columns:,} columns")
    # By row groups: reading a column of a damaged footer crashes the process (pyarrow 26.0.1, 2026-11-22).
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    values = metadata.num_rows * metadata.num_columns
    unpacked = max(sum(group.total_byte_size for group in groups), _VALUE_BYTES * values)
    if unpacked > most_bytes(path):
        raise _too_large(path, f"its {path.stat().st_size:,} bytes unpack to {unpacked:,}")


def most_bytes(path: Path) -> int:
    """Return how many bytes a file may unpack to."""
    return max(FREE_BYTES, MOST_TIMES * path.stat().st_size)


def text_stream(path: Path) -> Any:
    """Return a CSV as a stream of its text, unpacked. Raises DataError once more than `most_bytes`
    were read.
    """
    stream = pa.input_stream(str(path))
    return pa.PythonFile(_Counted(stream, path), mode="r") if path.suffix.lower() == ".gz" else stream


def first_line(error: BaseException) -> str:
    """Return the first line of a library's message."""
    return str(error).strip().split("\n")[0][:160]


def _too_large(path: Path, why: str) -> DataError:
    return DataError(
        f"{path} is too large for candles", why=why, do="Split it, or move it out of the data folder."
    )


class _Counted:
    """A stream that refuses to unpack more than a file's limit."""

    def __init__(self, stream: Any, path: Path) -> None:
        self._stream, self._path, self._left = stream, path, most_bytes(path)

    def read(self, size: int = -1) -> bytes:
        content: bytes = self._stream.read(size if 0 <= size <= self._left else self._left + 1)
        self._left -= len(content)
        if self._left < 0:
            size = self._path.stat().st_size
            raise _too_large(self._path, f"its {size:,} bytes unpack to more than {most_bytes(self._path):,}")
        return content

    def close(self) -> None:
        self._stream.close()

    @property
    def closed(self) -> bool:
        return bool(self._stream.closed)
