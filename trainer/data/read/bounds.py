"""Bounds on the memory that reading a candle file takes, checked so that a small file can't fill it.

A parquet file's footer says how many rows and bytes it has, and its schema the types: text is read as
dictionaries, and lists and the like are refused, since a few bytes may stand for any number of them. A
compressed CSV is counted while it is read.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from trainer.base.errors import DataError

# Arrow's errors for malformed files. DataError is none of these.
UNREADABLE = (pa.ArrowException, OSError, EOFError, ValueError, KeyError)
MOST_ROWS = 1_000_000_000  # of a file; data.bars has the same bound
MOST_COLUMNS = 10_000
FREE_BYTES = 1 << 30  # of memory, for a file of any size
MOST_TIMES = 100  # bytes of memory per byte of the file; candles need 3 to 40
# Of memory for a row, and for each of its columns: 176 bytes for six columns with epoch numbers, and 245 to
# 312 with times as text of 27 to 30 bytes a row, all of which is held twice (2026-11-24).
_ROW_BYTES, _COLUMN_BYTES, _TEXT_TIMES = 60, 30, 2
_USUAL_COLUMNS = 6
_MOST_AT_ONCE = 64 << 20  # of a stream


def check_footer(path: Path, metadata: Any) -> None:
    """Raise DataError for a parquet file with too many rows or columns for candles, or that takes too much
    memory.
    """
    if metadata.num_rows > MOST_ROWS or metadata.num_columns > MOST_COLUMNS:
        raise _too_large(path, f"it has {metadata.num_rows:,} rows and {metadata.num_columns:,} columns")
    # By row groups: reading a column of a damaged footer crashes the process (pyarrow 26.0.1, 2026-11-22).
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    unpacked = sum(max(group.total_byte_size, 0) for group in groups)
    refuse_much(path, rows=metadata.num_rows, text=unpacked)


def refuse_much(path: Path, *, rows: int, columns: int = _USUAL_COLUMNS, text: int = 0) -> None:
    """Raise DataError if so many rows of so many columns, in so many bytes, take too much memory for a file
    of this size.
    """
    needed = rows * (_ROW_BYTES + _COLUMN_BYTES * columns) + _TEXT_TIMES * text
    if needed > max(FREE_BYTES, MOST_TIMES * path.stat().st_size):
        why = f"its {path.stat().st_size:,} bytes take {needed:,} bytes of memory, or more"
        raise _too_large(path, why)


def refuse_types(path: Path, schema: pa.Schema, names: Iterable[str]) -> None:
    """Raise DataError for a column whose values are no numbers, texts or times."""
    for name in names:
        kind = schema.field(name).type
        if not _is_plain(kind.value_type if pa.types.is_dictionary(kind) else kind):
            what = f"column {name.strip()[:80]} of {path} has values of type {str(kind)[:40]}"
            raise DataError(
                what, why="a bar has numbers, texts and times", do="Write it as a number or text."
            )


def _is_plain(kind: pa.DataType) -> bool:
    tests = ("is_integer", "is_floating", "is_decimal", "is_boolean", "is_temporal", "is_null")
    return is_text(kind) or any(getattr(pa.types, test)(kind) for test in tests)


def is_text(kind: pa.DataType) -> bool:
    """Return whether a column of this type has texts."""
    tests = (
        "is_string",
        "is_large_string",
        "is_string_view",
        "is_binary",
        "is_large_binary",
        "is_binary_view",
    )
    return any(getattr(pa.types, test)(kind) for test in tests)


def text_stream(path: Path, columns: int = _USUAL_COLUMNS) -> Any:
    """Return a CSV as a stream of its text, unpacked, of which so many columns are read. Raises DataError
    once it would take too much memory.
    """
    stream = pa.input_stream(str(path))
    return (
        pa.PythonFile(_Counted(stream, path, columns), mode="r") if path.suffix.lower() == ".gz" else stream
    )


def first_line(error: BaseException) -> str:
    """Return the first line of a library's message."""
    return str(error).strip().split("\n")[0][:160]


def _too_large(path: Path, why: str) -> DataError:
    return DataError(
        f"{path} is too large for candles", why=why, do="Split it, or move it out of the data folder."
    )


class _Counted:
    """A stream that is read a block at a time, and refused once its rows take too much memory."""

    def __init__(self, stream: Any, path: Path, columns: int) -> None:
        self._stream, self._path, self._columns = stream, path, columns
        self._rows = self._bytes = 0

    def read(self, size: int = -1) -> bytes:
        content: bytes = self._stream.read(size if 0 <= size <= _MOST_AT_ONCE else _MOST_AT_ONCE)
        self._bytes += len(content)
        self._rows += max(content.count(b"\n"), content.count(b"\r"))
        refuse_much(self._path, rows=self._rows, columns=self._columns, text=self._bytes)
        return content

    def close(self) -> None:
        self._stream.close()

    @property
    def closed(self) -> bool:
        return bool(self._stream.closed)
