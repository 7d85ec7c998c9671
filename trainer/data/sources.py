"""The rows of one candle file as numpy arrays, whole or in parts, a series for each symbol. Joining files is `candles`' work.

`headers` says which columns are read, `times` and `symbol_columns` what stands in them, `bounds` how much that may be.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from trainer.data.bounds import UNREADABLE, first_line, text_stream
from trainer.data.headers import FIELDS, CandleHeader
from trainer.data.symbol_columns import checked, split_rows
from trainer.data.times import check_units, is_number, nanoseconds, unreadable_time
from trainer.errors import DataError

_BATCH_ROWS = 1 << 20  # of a parquet file that is streamed
_BLOCK_BYTES = 64 << 20  # of a CSV: its columns' types are inferred from the first


@dataclass(frozen=True, kw_only=True)
class Series:
    """The bars of one symbol in one file, as they stand: `timestamp` int64 ns UTC, `values` (5 + C, N) float64.

    The rows of `values` are FIELDS, then the C columns asked for, NaN where a cell is empty.
    """

    file: str
    symbol: str
    timestamp: np.ndarray
    values: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Held:
    """The bars of one symbol in a file: their number, the first and the last time in nanoseconds UTC."""

    symbol: str
    bars: int
    first: int
    last: int


def read_series(source: CandleHeader, columns: Sequence[str] = ()) -> list[Series]:
    """Read the bars of a file, a Series for each symbol.

    `columns` are further ones to read. Raises DataError, also for a column that is not there or has no numbers.
    """
    names, numbers = _names(source, columns)
    table = _table(source, names, numbers)
    if not table.num_rows:
        raise _empty(source)
    return _series_of(source, table, numbers, None)[0]


def stream_series(
    source: CandleHeader, symbols: set[str] | None, columns: Sequence[str] = ()
) -> Iterator[tuple[list[Series], list[Held]]]:
    """Yield parts of a file, in its order: the bars of `symbols` (None: all), and what the part holds of every symbol.

    No more than a part is in memory. Raises DataError.
    """
    names, numbers = _names(source, columns)
    largest, is_empty = _largest_time(source), True
    for table in _batches(source, names, numbers):
        if table.num_rows:
            is_empty = False
            yield _series_of(source, table, numbers, symbols, largest)
    if is_empty:
        raise _empty(source)


def _names(source: CandleHeader, columns: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the file's columns to read, and those of them that are numbers of a bar or further columns."""
    numbers = [*(source.columns[field] for field in FIELDS), *(source.column_of(name) for name in columns)]
    symbol = [source.columns["symbol"]] if source.has_symbol_column else []
    return [source.columns["timestamp"], *numbers, *symbol], numbers


def _series_of(
    source: CandleHeader, table: pa.Table, numbers: Sequence[str], symbols: set[str] | None, largest: float | None = None
) -> tuple[list[Series], list[Held]]:
    timestamp = nanoseconds(source, table.column(0), largest)
    values = np.empty((len(numbers), table.num_rows))
    for row, name in enumerate(numbers):
        values[row] = _floats(source, name, table.column(1 + row))
    if not source.has_symbol_column:
        symbol = checked(source, source.name_symbol)
        whole = Series(file=source.path.name, symbol=symbol, timestamp=timestamp, values=values)
        return [whole], [held_of(whole.symbol, timestamp)]
    series, held = [], []
    for name, rows in split_rows(source, table.column(table.num_columns - 1)):
        held.append(held_of(name, timestamp[rows]))
        if symbols is None or name in symbols:
            series.append(Series(file=source.path.name, symbol=name, timestamp=timestamp[rows], values=values[:, rows]))
    return series, held


def _empty(source: CandleHeader) -> DataError:
    return DataError(f"{source.path} holds no bars", do="Replace the file, or move it out of the data folder.")


def held_of(symbol: str, timestamp: np.ndarray) -> Held:
    """Return what a file holds of a symbol whose times these are."""
    return Held(symbol=symbol, bars=len(timestamp), first=int(timestamp[0]), last=int(timestamp[-1]))


def _table(source: CandleHeader, names: Sequence[str], numbers: Collection[str] = ()) -> pa.Table:
    """Read columns by their names in the file, in the order asked for. Those of `numbers` hold floats."""
    try:
        if not source.delimiter:
            table = pq.read_table(source.path, columns=list(names), memory_map=True, read_dictionary=source.texts)
            return table.select(names)
        with text_stream(source.path) as stream:
            return pa_csv.read_csv(stream, **_csv_options(source, names, numbers))
    except UNREADABLE as error:
        raise _unreadable(source, error) from error


def _batches(source: CandleHeader, names: Sequence[str], numbers: Collection[str] = ()) -> Iterator[pa.Table]:
    """Yield the same as `_table`, a part at a time."""
    try:
        if not source.delimiter:
            with pq.ParquetFile(source.path, memory_map=True, read_dictionary=source.texts) as file:
                for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=list(names)):
                    yield pa.Table.from_batches([batch]).select(names)
            return
        blocks = pa_csv.ReadOptions(block_size=_BLOCK_BYTES)
        options = _csv_options(source, names, numbers)
        with text_stream(source.path) as stream, pa_csv.open_csv(stream, read_options=blocks, **options) as reader:
            for batch in reader:
                yield pa.Table.from_batches([batch])
    except UNREADABLE as error:
        raise _unreadable(source, error) from error


def _csv_options(source: CandleHeader, names: Sequence[str], numbers: Collection[str]) -> dict[str, Any]:
    # Prices are read as numbers whatever the first rows look like; a symbol such as NA or 600519 stays text.
    types = {name: pa.float64() for name in numbers}
    if source.has_symbol_column:
        types[source.columns["symbol"]] = pa.string()
    return {
        "parse_options": pa_csv.ParseOptions(delimiter=source.delimiter),
        "convert_options": pa_csv.ConvertOptions(include_columns=list(names), column_types=types, strings_can_be_null=False),
    }


def _unreadable(source: CandleHeader, error: Exception) -> DataError:
    if match := re.match(r"In CSV column #(\d+):.* to double", str(error)):
        return _no_number(source, source.names[int(match[1])], error)
    return DataError(
        f"{source.path} can't be read", why=first_line(error), do="Replace the file, or move it out of the data folder."
    )


def _largest_time(source: CandleHeader) -> float | None:
    """Return the largest of a file's epoch numbers, which tells their unit; None where its times are no numbers."""
    numbers = np.empty(0)
    largest = None
    for table in _batches(source, [source.columns["timestamp"]]):
        column = table.column(0).drop_null()
        if not is_number(column.type):
            return None
        numbers = np.concatenate([numbers[-1:], column.to_numpy()])
        try:
            check_units(numbers)
        except ValueError as error:
            raise unreadable_time(source, error) from error
        if len(numbers):
            largest = max(float(numbers.max()), numbers[0] if largest is None else largest)
    return largest


def _floats(source: CandleHeader, name: str, column: Any) -> np.ndarray:
    try:
        return np.asarray(column.cast(pa.float64()).to_numpy())  # nulls become NaN
    except UNREADABLE as error:
        raise _no_number(source, name, error) from error


def _no_number(source: CandleHeader, name: str, error: Exception) -> DataError:
    what = f"{source.path} has something in column {name.strip()} that is no number"
    return DataError(what, why=first_line(error), do="Correct the column, or leave it out.")
