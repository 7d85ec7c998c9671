"""Read the rows of one candle file as numpy arrays, whole or in parts, a series per symbol. `candles` joins
files.

`headers` chooses the columns, `times` and `symbol_columns` decode them, `bounds` limits their size.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from trainer.base.errors import DataError
from trainer.base.text import counted
from trainer.data.columns import Told
from trainer.data.pieces import long_array
from trainer.data.read.arrow_files import arrow_batches, arrow_table, is_arrow
from trainer.data.read.bounds import UNREADABLE, first_line, refuse_much, refuse_types, text_stream
from trainer.data.read.headers import CandleHeader, footer_error, open_header, read_options
from trainer.data.read.numbers import array_of
from trainer.data.read.shapes import FIELDS
from trainer.data.read.symbol_columns import FileSymbol, checked, split_rows
from trainer.data.read.times import Evidence, evidence_of, nanoseconds

_BATCH_ROWS = 1 << 20  # per part of a parquet file
_FEW_ROWS = 1 << 17  # of a parquet file: up to here decoding on several threads does not pay (2026-11-22)
_PART_ROWS = 1 << 16  # of a longer one, decoded at once: they fit the cache (2026-11-27)
_CLOSE = FIELDS.index("close")
_BLOCK_BYTES = 64 << 20  # per part of a CSV; column types are inferred from the first


@dataclass(frozen=True, kw_only=True)
class Series:
    """The bars of one symbol in one file, in its order: `timestamp` (N,) int64 ns UTC, `values` (5 + C, N)
    float64.

    The rows of `values` are FIELDS, then the C requested columns, then with `has_actions` splits and
    dividends; NaN for an empty cell.
    """

    file: str
    symbol: str
    timestamp: np.ndarray
    values: np.ndarray
    is_adjusted: bool = False
    has_actions: bool = False
    guess: str = ""  # how its times were read, where the file leaves that open


@dataclass(frozen=True, kw_only=True)
class Held:
    """A symbol's content of a file: the number of bars, the first and the last time in nanoseconds UTC."""

    symbol: str
    bars: int
    first: int
    last: int
    written: str = ""  # the file's spelling of the symbol, if different

    def joined(self, later: Held) -> Held:
        """Return the content of this part of a file combined with a later part's."""
        first, last = min(self.first, later.first), max(self.last, later.last)
        return replace(self, bars=self.bars + later.bars, first=first, last=last)


def read_series(header: CandleHeader) -> list[Series]:
    """Return the bars of a file, a Series per symbol. Raises DataError, also for a column that is not
    numeric.
    """
    series = _series_of(header, _tables(header, header.bar_columns, whole=True), None)[0]
    if not series:
        raise _empty(header)
    return series


def read_rows(header: CandleHeader) -> list[tuple[Series, np.ndarray]]:
    """Return the bars of a file, a Series per symbol, each with the rows (N,) int64 of its bars in the file.
    Raises DataError.
    """
    tables = _tables(header, header.bar_columns, whole=True)
    return [
        (_series(header, one, timestamp, values, guess), np.arange(len(timestamp)) if rows is None else rows)
        for one, rows, timestamp, values, guess in _by_symbol(header, tables, None)
    ]


def read_table(header: CandleHeader) -> pa.Table:
    """Return a file's table as it is, with all columns: those of a CSV as text. Raises DataError."""
    try:
        if is_arrow(header.path):
            return arrow_table(header.path, header.names)
        if header.shape is None:
            with pq.ParquetFile(header.path) as file:
                refuse_types(header.path, file.schema_arrow, header.names)
                refuse_much(header.path, rows=file.metadata.num_rows, columns=len(header.names))
                return file.read()
        convert = pa_csv.ConvertOptions(
            column_types=dict.fromkeys(header.names, pa.string()),
            strings_can_be_null=False,
            quoted_strings_can_be_null=False,
        )
        with text_stream(header.path, len(header.names)) as stream:
            return pa_csv.read_csv(stream, **read_options(header.shape), convert_options=convert)
    except UNREADABLE as error:
        raise _unreadable(header, error) from error


def first_times(header: CandleHeader) -> np.ndarray:
    """Return the times (N,) int64 of a file's first part in nanoseconds UTC, ascending, each once. Raises
    DataError.
    """
    table = next(_tables(header, header.times), None)
    if table is None:
        raise _empty(header)
    return np.unique(nanoseconds(header, [table.column(name) for name in header.times])[0])


def stream_series(
    header: CandleHeader, symbols: set[str] | None
) -> Iterator[tuple[list[Series], list[Held]]]:
    """Yield parts of a file, in its order: the bars of `symbols` (None: all), and the part's content of every
    symbol.

    Only one part is in memory. Raises DataError.
    """
    evidence, is_empty = evidence_of(header, _tables(header, header.times)), True
    for table in _tables(header, header.bar_columns):
        if table.num_rows:
            is_empty = False
            yield _series_of(header, iter([table]), symbols, evidence)
    if is_empty:
        raise _empty(header)


def open_candles(path: Path, file: str, told: Told | None) -> CandleHeader:
    """Return a candle file's header, with ticks as volume if there is none or it is all zero. Raises
    DataError.
    """
    header = open_header(path, file, told)
    if not header.ticks or "volume" in header.columns and not _is_zero(header, header.columns["volume"]):
        return header
    return replace(header, columns={**header.columns, "volume": header.ticks})


def _is_zero(header: CandleHeader, name: str) -> bool:
    """Return whether a column is all zeros."""
    return not any(np.any(_floats(header, name, table.column(0))) for table in _tables(header, [name]))


def _series_of(
    header: CandleHeader,
    tables: Iterator[pa.Table],
    symbols: set[str] | None,
    evidence: Evidence | None = None,
) -> tuple[list[Series], list[Held]]:
    series, held = [], []
    for one, _, timestamp, values, guess in _by_symbol(header, tables, evidence):
        held.append(held_of(one, timestamp))
        if symbols is None or one.symbol in symbols:
            series.append(_series(header, one, timestamp, values, guess))
    return series, held


def _by_symbol(
    header: CandleHeader, tables: Iterator[pa.Table], evidence: Evidence | None
) -> Iterator[tuple[FileSymbol, np.ndarray | None, np.ndarray, np.ndarray, str]]:
    """Yield each symbol of the rows that `_tables` yields, with its rows (N,) int64 (None: all), their times
    (N,) and values (5 + C, N), and how the times were read.
    """
    table = next(tables)
    if not table.num_rows:
        return
    timestamp, guess = nanoseconds(header, [table.column(name) for name in header.times], evidence)
    symbols = table.column(header.columns["symbol"]) if header.has_symbol_column else None
    values = _numbers(header, chain([table], tables), len(timestamp))
    if header.told.volume_times != 1:
        values[FIELDS.index("volume")] *= header.told.volume_times
    if header.adjusted:
        _adjust(header, timestamp, values[:-1], values[-1])
        values = values[:-1]
    if symbols is None:
        yield checked(header, header.name_symbol), None, timestamp, values, guess
        return
    named = split_rows(header, symbols)
    for one, rows in named:
        if len(named) == 1:
            yield one, None, timestamp, values, guess
        else:
            yield one, rows, timestamp[rows], values[:, rows], guess


def _numbers(header: CandleHeader, tables: Iterable[pa.Table], rows: int) -> np.ndarray:
    """Return the columns of numbers (C, N) float64 of the tables that have them: those of a bar, further
    ones, those of actions, and the adjusted close. Raises DataError.
    """
    names = [*(header.columns.get(field) for field in FIELDS), *header.extra, *header.actions]
    names += [header.adjusted] if header.adjusted else []
    values = long_array((len(names), rows), np.float64)
    start = 0
    for table in tables:
        if header.columns["close"] not in table.column_names:
            continue
        stop = start + table.num_rows
        if stop > rows:
            break
        for row, name in enumerate(names):
            if name is not None:  # a missing volume is zero
                values[row, start:stop] = _floats(header, name, table.column(name))
        start = stop
    if start != rows:
        raise _unreadable(header, ValueError("its columns have different lengths"))
    return values


def _adjust(
    header: CandleHeader, timestamp_N: np.ndarray, values_CN: np.ndarray, adjusted_N: np.ndarray
) -> None:
    """Adjust prices for splits and dividends, in place: scale each bar by adjusted close / close.

    Volume stays as traded. Raises DataError for an adjusted close that is missing or not above zero.
    """
    close_N = values_CN[_CLOSE].copy()
    bad_N = ~((adjusted_N > 0) & np.isfinite(adjusted_N)) & ~np.isnan(close_N)
    if bad_N.any():
        first = np.datetime64(int(timestamp_N[bad_N.argmax()]), "ns").astype("datetime64[s]")
        column = header.adjusted.strip()
        raise DataError(
            f"{header.path} has no adjusted close in {counted(int(bad_N.sum()), 'bar')} of column {column}",
            why=f"the first at {first}Z",
            do="Fill the column, or drop it: prices are then taken as traded.",
        )
    with np.errstate(divide="ignore", invalid="ignore"):  # a close of zero is refused later
        values_CN[:_CLOSE] *= adjusted_N / close_N
    values_CN[_CLOSE] = np.where(np.isnan(close_N) | (close_N <= 0), close_N, adjusted_N)


def _series(
    header: CandleHeader, one: FileSymbol, timestamp: np.ndarray, values: np.ndarray, guess: str
) -> Series:
    return Series(
        file=header.file,
        symbol=one.symbol,
        timestamp=timestamp,
        values=values,
        is_adjusted=bool(header.adjusted),
        has_actions=bool(header.actions),
        guess=guess,
    )


def _empty(header: CandleHeader) -> DataError:
    return DataError(
        f"{header.path} holds no bars", do="Replace the file, or move it out of the data folder."
    )


def held_of(one: FileSymbol, timestamp: np.ndarray) -> Held:
    """Return the content of a symbol with these times, which are ascending or descending."""
    first, last = sorted((int(timestamp[0]), int(timestamp[-1])))
    written = one.written if one.written != one.symbol else ""
    return Held(symbol=one.symbol, bars=len(timestamp), first=first, last=last, written=written)


def _tables(header: CandleHeader, names: Sequence[str], *, whole: bool = False) -> Iterator[pa.Table]:
    """Yield columns by their names in the file, in this order: a part at a time, or as one table. Of a long
    parquet file that table has no numbers: their parts follow.
    """
    try:
        if is_arrow(header.path):
            if whole:
                yield arrow_table(header.path, names)
            else:
                for batch in arrow_batches(header.path, names, rows=_BATCH_ROWS):
                    yield pa.Table.from_batches([batch])
            return
        if header.shape is None:
            # Not `read_table`, which builds a dataset per file: 20,000 bars take half as long again
            # (2026-11-22).
            with pq.ParquetFile(header.path, memory_map=True, read_dictionary=header.texts) as file:
                refuse_types(header.path, file.schema_arrow, names)
                refuse_much(header.path, rows=file.metadata.num_rows, columns=len(names))
                is_long = file.metadata.num_rows > _FEW_ROWS
                if whole:
                    in_parts = is_long and not set(header.texts) & set(header.numbers)
                    some = [name for name in names if not in_parts or name not in header.numbers]
                    yield file.read(columns=some, use_threads=is_long).select(some)
                    if not in_parts:
                        return
                    names = header.numbers
                rows = _PART_ROWS if whole else _BATCH_ROWS
                for batch in file.iter_batches(batch_size=rows, columns=list(names)):
                    yield pa.Table.from_batches([batch]).select(names)
            return
        options = {**read_options(header.shape), "convert_options": _convert_options(header, names)}
        with text_stream(header.path, len(names)) as stream:
            if whole:
                yield pa_csv.read_csv(stream, **options)
                return
            options["read_options"].block_size = _BLOCK_BYTES
            with pa_csv.open_csv(stream, **options) as reader:
                for batch in reader:
                    yield pa.Table.from_batches([batch])
    except UNREADABLE as error:
        raise _unreadable(header, error) from error


def _convert_options(header: CandleHeader, names: Collection[str]) -> pa_csv.ConvertOptions:
    # Not inferred: prices are numbers; symbols such as NA or 600519 and times of day such as 093000 are text.
    types = {name: pa.float64() for name in header.numbers}
    if header.has_symbol_column:
        types[header.columns["symbol"]] = pa.string()
    if header.dates:
        types[header.columns["timestamp"]] = pa.string()
    assert header.shape is not None
    return pa_csv.ConvertOptions(
        include_columns=list(names),
        column_types=types,
        strings_can_be_null=False,
        decimal_point=header.shape.decimal,
    )


def _unreadable(header: CandleHeader, error: Exception) -> DataError:
    if footer := footer_error(header):
        return footer
    if match := re.match(r"In CSV column #(\d+):.* to double", str(error)):
        return _no_number(header, header.names[int(match[1])], error)
    return DataError(
        f"{header.path} can't be read",
        why=first_line(error),
        do="Replace the file, or move it out of the data folder.",
    )


def _floats(header: CandleHeader, name: str, column: Any) -> np.ndarray:
    try:
        if pa.types.is_dictionary(column.type):  # a long text is read once, however often it stands there
            chunks = [chunk.dictionary.cast(pa.float64()).take(chunk.indices) for chunk in column.chunks]
            column = pa.chunked_array(chunks, pa.float64())
        return array_of(column.cast(pa.float64()))
    except UNREADABLE as error:
        raise _no_number(header, name, error) from error


def _no_number(header: CandleHeader, name: str, error: Exception) -> DataError:
    what = f"{header.path} has a value in column {name.strip()} that is not a number"
    return DataError(what, why=first_line(error), do="Correct the column, or leave it out.")
