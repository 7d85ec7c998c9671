"""Read the rows of one candle file as numpy arrays, whole or in parts, a series per symbol. `candles` joins
files.

`headers` chooses the columns, `times` and `symbol_columns` decode them, `bounds` limits their size.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from trainer.base.errors import DataError
from trainer.data.read.adjusting import adjust
from trainer.data.read.bounds import UNREADABLE, first_line, text_stream
from trainer.data.read.headers import CandleHeader, open_source, read_options
from trainer.data.read.shapes import FIELDS
from trainer.data.read.symbol_columns import FileSymbol, checked, split_rows
from trainer.data.read.time_texts import Evidence, evidence_of
from trainer.data.read.times import check_units, decoded, is_number, nanoseconds, unreadable_time

_BATCH_ROWS = 1 << 20  # per part of a parquet file
_FEW_ROWS = 1 << 17  # of a parquet file: up to here decoding on several threads does not pay (2026-11-22)
_BLOCK_BYTES = 64 << 20  # per part of a CSV; column types are inferred from the first


@dataclass(frozen=True, kw_only=True)
class Series:
    """The bars of one symbol in one file, in its order: `timestamp` (N,) int64 ns UTC, `values` (5 + C, N)
    float64.

    The rows of `values` are FIELDS, then the C requested columns; NaN for an empty cell.
    """

    file: str
    symbol: str
    timestamp: np.ndarray
    values: np.ndarray
    is_adjusted: bool = False


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


def read_series(source: CandleHeader, columns: Sequence[str] = ()) -> list[Series]:
    """Return the bars of a file, a Series per symbol.

    `columns` are further columns to read. Raises DataError, also for a column that is missing or not numeric.
    """
    names, numbers = _names(source, columns)
    table = _table(source, names, numbers)
    if not table.num_rows:
        raise _empty(source)
    return _series_of(source, table, columns, None)[0]


def stream_series(
    source: CandleHeader, symbols: set[str] | None, columns: Sequence[str] = ()
) -> Iterator[tuple[list[Series], list[Held]]]:
    """Yield parts of a file, in its order: the bars of `symbols` (None: all), and the part's content of every
    symbol.

    Only one part is in memory. Raises DataError.
    """
    names, numbers = _names(source, columns)
    evidence, is_empty = _evidence(source), True
    for table in _batches(source, names, numbers):
        if table.num_rows:
            is_empty = False
            yield _series_of(source, table, columns, symbols, evidence)
    if is_empty:
        raise _empty(source)


def open_candles(path: Path, file: str = "") -> CandleHeader:
    """Return a candle file's header, with ticks as volume if there is none or it is all zero. Raises
    DataError.
    """
    source = open_source(path, file)
    if not source.ticks or "volume" in source.columns and not _is_zero(source, source.columns["volume"]):
        return source
    return replace(source, columns={**source.columns, "volume": source.ticks})


def _is_zero(source: CandleHeader, name: str) -> bool:
    """Return whether a column is all zeros."""
    return not any(
        np.any(_floats(source, name, table.column(0))) for table in _batches(source, [name], [name])
    )


def _numbers(source: CandleHeader, columns: Sequence[str]) -> list[str]:
    """Return the file's numeric columns to read: those of a bar, further ones, and the adjusted close."""
    fields = [source.columns[field] for field in FIELDS if field in source.columns]
    adjusted = [source.adjusted] if source.adjusted else []
    return [*fields, *(source.column_of(name) for name in columns), *adjusted]


def _names(source: CandleHeader, columns: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the file's columns to read, each once, and the numeric ones among them."""
    numbers = _numbers(source, columns)
    symbol = [source.columns["symbol"]] if source.has_symbol_column else []
    return list(dict.fromkeys([*source.times, *numbers, *symbol])), numbers


def _series_of(
    source: CandleHeader,
    table: pa.Table,
    columns: Sequence[str],
    symbols: set[str] | None,
    evidence: Evidence | None = None,
) -> tuple[list[Series], list[Held]]:
    timestamp = nanoseconds(source, [table.column(name) for name in source.times], evidence)
    values = np.zeros((len(FIELDS) + len(columns), table.num_rows))  # a missing volume is zero
    fields = [(row, source.columns[field]) for row, field in enumerate(FIELDS) if field in source.columns]
    for row, name in [
        *fields,
        *((len(FIELDS) + row, source.column_of(name)) for row, name in enumerate(columns)),
    ]:
        values[row] = _floats(source, name, table.column(name))
    if source.adjusted:
        adjust(source, timestamp, values, _floats(source, source.adjusted, table.column(source.adjusted)))
    if not source.has_symbol_column:
        one = checked(source, source.name_symbol)
        return [_series(source, one, timestamp, values)], [held_of(one, timestamp)]
    series, held = [], []
    for one, rows in split_rows(source, table.column(source.columns["symbol"])):
        held.append(held_of(one, timestamp[rows]))
        if symbols is None or one.symbol in symbols:
            series.append(_series(source, one, timestamp[rows], values[:, rows]))
    return series, held


def _series(source: CandleHeader, one: FileSymbol, timestamp: np.ndarray, values: np.ndarray) -> Series:
    adjusted = bool(source.adjusted)
    return Series(
        file=source.file, symbol=one.symbol, timestamp=timestamp, values=values, is_adjusted=adjusted
    )


def _empty(source: CandleHeader) -> DataError:
    return DataError(
        f"{source.path} holds no bars", do="Replace the file, or move it out of the data folder."
    )


def held_of(one: FileSymbol, timestamp: np.ndarray) -> Held:
    """Return the content of a symbol with these times, which are ascending or descending."""
    first, last = sorted((int(timestamp[0]), int(timestamp[-1])))
    written = one.written if one.written != one.symbol else ""
    return Held(symbol=one.symbol, bars=len(timestamp), first=first, last=last, written=written)


def _table(source: CandleHeader, names: Sequence[str], numbers: Collection[str] = ()) -> pa.Table:
    """Return columns by their names in the file, in this order. Those of `numbers` are read as floats."""
    try:
        if source.shape is None:
            # Not `read_table`, which builds a dataset per file: 20,000 bars take half as long again
            # (2026-11-22).
            with pq.ParquetFile(source.path, memory_map=True, read_dictionary=source.texts) as file:
                return file.read(columns=list(names), use_threads=file.metadata.num_rows > _FEW_ROWS).select(
                    names
                )
        with text_stream(source.path) as stream:
            return pa_csv.read_csv(stream, **_csv_options(source, names, numbers))
    except UNREADABLE as error:
        raise _unreadable(source, error) from error


def _batches(source: CandleHeader, names: Sequence[str], numbers: Collection[str] = ()) -> Iterator[pa.Table]:
    """Yield the same as `_table`, a part at a time."""
    try:
        if source.shape is None:
            with pq.ParquetFile(source.path, memory_map=True, read_dictionary=source.texts) as file:
                for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=list(names)):
                    yield pa.Table.from_batches([batch]).select(names)
            return
        options = _csv_options(source, names, numbers)
        options["read_options"].block_size = _BLOCK_BYTES
        with text_stream(source.path) as stream, pa_csv.open_csv(stream, **options) as reader:
            for batch in reader:
                yield pa.Table.from_batches([batch])
    except UNREADABLE as error:
        raise _unreadable(source, error) from error


def _csv_options(source: CandleHeader, names: Sequence[str], numbers: Collection[str]) -> dict[str, Any]:
    # Not inferred: prices are numbers; symbols such as NA or 600519 and times of day such as 093000 are text.
    types = {name: pa.float64() for name in numbers}
    if source.has_symbol_column:
        types[source.columns["symbol"]] = pa.string()
    if source.dates:
        types[source.columns["timestamp"]] = pa.string()
    assert source.shape is not None
    return {
        **read_options(source.shape),
        "convert_options": pa_csv.ConvertOptions(
            include_columns=list(names),
            column_types=types,
            strings_can_be_null=False,
            decimal_point=source.shape.decimal,
        ),
    }


def _unreadable(source: CandleHeader, error: Exception) -> DataError:
    if match := re.match(r"In CSV column #(\d+):.* to double", str(error)):
        return _no_number(source, source.names[int(match[1])], error)
    return DataError(
        f"{source.path} can't be read",
        why=first_line(error),
        do="Replace the file, or move it out of the data folder.",
    )


def _evidence(source: CandleHeader) -> Evidence:
    """Return the evidence on the format of times from all of a file's rows. Raises DataError."""
    evidence, last = Evidence(), np.empty(0)
    for table in _batches(source, source.times):
        columns = [table.column(name).drop_null() for name in source.times]
        if pa.types.is_timestamp(columns[-1].type) and not source.dates:
            return evidence  # timestamps are unambiguous
        try:
            columns = [decoded(column) for column in columns]
            evidence = evidence.joined(evidence_of(columns))
            if is_number(columns[-1].type):  # the unit might change between two parts
                numbers = np.concatenate([last, columns[-1].to_numpy()])
                check_units(numbers)
                last = numbers[-1:]
        except UNREADABLE as error:
            raise unreadable_time(source, error) from error
    return evidence


def _floats(source: CandleHeader, name: str, column: Any) -> np.ndarray:
    try:
        return np.asarray(column.cast(pa.float64()).to_numpy())  # nulls become NaN
    except UNREADABLE as error:
        raise _no_number(source, name, error) from error


def _no_number(source: CandleHeader, name: str, error: Exception) -> DataError:
    what = f"{source.path} has a value in column {name.strip()} that is not a number"
    return DataError(what, why=first_line(error), do="Correct the column, or leave it out.")
