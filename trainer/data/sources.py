"""One candle file: which columns it has, which symbols it holds, its rows as numpy arrays. Joining files is `candles`' work.

A symbol comes from a column, else from the file's name `SYMBOL_TIMEFRAME_...`; a timeframe from the name, else it is the
commonest step.

Columns are recognized by name, whatever their order and case; others are read where a job names them exactly. Times may be
timestamps, dates, epoch numbers in s, ms, us or ns (told by their size), or ISO text; a time without a zone is UTC.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from trainer.data.timeframes import parse_name
from trainer.errors import DataError, nearest

SUFFIXES = (".parquet", ".pq", ".csv", ".csv.gz")
FIELDS = ("open", "high", "low", "close", "volume")
SYNTHETIC_KEY = b"mayfly_synthetic"  # schema metadata of generated candles
_NAMES = {  # in order of preference; compared in lower case with blanks and dashes as underscores
    "timestamp": (
        "timestamp",
        "open_time",
        "opentime",
        "datetime",
        "date_time",
        "time",
        "date",
        "ts",
        "t",
        "unix",
        "__index_level_0__",
    ),
    "open": ("open", "o", "open_price"),
    "high": ("high", "h", "high_price"),
    "low": ("low", "l", "low_price"),
    "close": ("close", "c", "close_price"),
    "volume": ("volume", "v", "vol", "base_volume", "volume_base"),
    "symbol": ("symbol", "ticker", "sym", "instrument", "pair"),
}
# Epoch numbers by size: each unit until the year 2255, where nanoseconds in int64 end, and none before 1973.
_EPOCH_UNITS = ((9e9, 1_000_000_000), (9e12, 1_000_000), (9e15, 1_000), (np.inf, 1))
_FIRST_EPOCH = 1e8
_BATCH_ROWS = 1 << 20  # of a parquet file that is streamed
_BLOCK_BYTES = 64 << 20  # of a CSV: its columns' types are inferred from the first


@dataclass(frozen=True, kw_only=True)
class CandleHeader:
    """A candle file, opened as far as its header."""

    path: Path
    columns: dict[str, str]  # our field -> the file's column
    names: tuple[str, ...]  # of all of the file's columns
    name_symbol: str  # what the name says, for a file without a symbol column
    name_timeframe: str  # '' where the name says none
    synthetic: bool
    delimiter: str = ""  # of a CSV

    @property
    def has_symbol_column(self) -> bool:
        return "symbol" in self.columns

    @property
    def further(self) -> tuple[str, ...]:
        """Return the names of the columns that are none of our fields, without blanks around them."""
        return tuple(name.strip() for name in self.names if name not in self.columns.values())


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


def candle_files(path: Path) -> list[Path]:
    """List the candle files of a folder, or the one file that `path` is. Raises DataError when there is none."""
    if path.is_file():
        if not path.name.lower().endswith(SUFFIXES):
            raise DataError(
                f"{path} is no candle file", why=f"it does not end in {', '.join(SUFFIXES)}", do="Convert it to parquet or CSV."
            )
        return [path]
    if not path.is_dir():
        raise DataError(f"data folder {path} does not exist", do="Give --data a folder or a file of candles.")
    files = [
        item
        for item in sorted(path.iterdir())
        if item.is_file() and item.name.lower().endswith(SUFFIXES) and item.name[0] not in "._"
    ]
    if not files:
        raise DataError(
            f"data folder {path} holds no candles",
            why=f"no file ends in {', '.join(SUFFIXES)}",
            do="Give --data a folder that does.",
        )
    return files


def open_source(path: Path) -> CandleHeader:
    """Read a file's header. Raises DataError when it is not what its name says, or lacks a needed column."""
    stem = path.name.split(".csv")[0] if ".csv" in path.name.lower() else path.stem
    symbol, timeframe = parse_name(stem)
    delimiter = ""
    try:
        if path.suffix.lower() in (".parquet", ".pq"):
            schema = pq.read_schema(path)
        else:
            delimiter = _delimiter(path)
            with pa_csv.open_csv(path, parse_options=pa_csv.ParseOptions(delimiter=delimiter)) as reader:
                schema = reader.schema
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError, EOFError, UnicodeDecodeError) as error:
        kind = "CSV" if delimiter or path.suffix.lower() not in (".parquet", ".pq") else "parquet"
        raise DataError(
            f"{path} is not {kind}", why=_first_line(error), do="Replace the file, or move it out of the data folder."
        ) from error
    columns = _recognize(schema.names)
    missing = [field for field in ("timestamp", *FIELDS) if field not in columns]
    if missing:
        raise DataError(
            f"{path} has no column for {', '.join(missing)}",
            why=f"its columns are {', '.join(schema.names[:12])}",
            do=f"Name the column {missing[0]}, or move the file out of the data folder.",
        )
    synthetic = (schema.metadata or {}).get(SYNTHETIC_KEY, b"") == b"true"
    return CandleHeader(
        path=path,
        columns=columns,
        names=tuple(schema.names),
        name_symbol=symbol,
        name_timeframe=timeframe,
        synthetic=synthetic,
        delimiter=delimiter,
    )


def only_symbol(source: CandleHeader) -> str | None:
    """Return the file's one symbol if its name, or a parquet file's statistics, show that there is no other; else None."""
    if not source.has_symbol_column:
        return source.name_symbol
    if source.delimiter:
        return None
    metadata = pq.read_metadata(source.path)
    column = next(i for i in range(metadata.num_columns) if metadata.schema.column(i).path == source.columns["symbol"])
    seen = set()
    for group in range(metadata.num_row_groups):
        statistics = metadata.row_group(group).column(column).statistics
        if statistics is None or not statistics.has_min_max or not statistics.has_null_count or statistics.null_count:
            return None
        seen |= {statistics.min, statistics.max}
    name = seen.pop() if len(seen) == 1 else None
    return str(name) if isinstance(name, (str, int)) else None


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
    numbers = [*(source.columns[field] for field in FIELDS), *(_further(source, name) for name in columns)]
    symbol = [source.columns["symbol"]] if source.has_symbol_column else []
    return [source.columns["timestamp"], *numbers, *symbol], numbers


def _series_of(
    source: CandleHeader, table: pa.Table, numbers: Sequence[str], symbols: set[str] | None, largest: float | None = None
) -> tuple[list[Series], list[Held]]:
    timestamp = _timestamps(source, table.column(0), largest)
    values = np.empty((len(numbers), table.num_rows))
    for row, name in enumerate(numbers):
        values[row] = _floats(source, name, table.column(1 + row))
    if not source.has_symbol_column:
        whole = Series(file=source.path.name, symbol=source.name_symbol, timestamp=timestamp, values=values)
        return [whole], [held_of(whole.symbol, timestamp)]
    return _by_symbol(source, table.column(table.num_columns - 1), timestamp, values, symbols)


def _empty(source: CandleHeader) -> DataError:
    return DataError(f"{source.path} holds no bars", do="Replace the file, or move it out of the data folder.")


def _by_symbol(
    source: CandleHeader, column: Any, timestamp: np.ndarray, values: np.ndarray, symbols: set[str] | None
) -> tuple[list[Series], list[Held]]:
    if column.null_count:
        raise DataError(
            f"{source.path} has {column.null_count} rows without a symbol", do="Fill the column, or drop those rows."
        )
    encoded = column.combine_chunks().cast(pa.string()).dictionary_encode()
    codes, names = encoded.indices.to_numpy(), encoded.dictionary.to_pylist()
    order = np.argsort(codes, kind="stable")  # a file sorted by time keeps each symbol's order
    ends = np.cumsum(np.bincount(codes, minlength=len(names)))
    series, held = [], []
    for code, name in enumerate(names):
        rows = order[(ends[code - 1] if code else 0) : ends[code]]
        held.append(held_of(name, timestamp[rows]))
        if symbols is None or name in symbols:
            series.append(Series(file=source.path.name, symbol=name, timestamp=timestamp[rows], values=values[:, rows]))
    return series, held


def held_of(symbol: str, timestamp: np.ndarray) -> Held:
    """Return what a file holds of a symbol whose times these are."""
    return Held(symbol=symbol, bars=len(timestamp), first=int(timestamp[0]), last=int(timestamp[-1]))


def _further(source: CandleHeader, name: str) -> str:
    """Return the file's name of a column that a job names. Raises DataError where it is not there, or is one of the bar's."""
    field = next((field for field, taken in source.columns.items() if taken.strip() == name), "")
    if field:
        raise DataError(
            f"column {name} of {source.path} is the {field} of its bars",
            why="data.columns takes what is no part of a bar",
            do="Leave it out, or give a copy of it another name.",
        )
    for header in source.names:
        if header.strip() == name:
            return header
    there = ", ".join(source.further[:12]) or "none"
    do = nearest(name, source.further) or "Leave it out of data.columns, or add it to the file."
    raise DataError(f"{source.path} has no column {name}", why=f"its columns beside those of a bar: {there}", do=do)


def _table(source: CandleHeader, names: Sequence[str], numbers: Collection[str] = ()) -> pa.Table:
    """Read columns by their names in the file, in the order asked for. Those of `numbers` hold floats."""
    try:
        if not source.delimiter:
            return pq.read_table(source.path, columns=list(names), memory_map=True).select(names)
        return pa_csv.read_csv(source.path, **_csv_options(source, names, numbers))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        raise _unreadable(source, error) from error


def _batches(source: CandleHeader, names: Sequence[str], numbers: Collection[str] = ()) -> Iterator[pa.Table]:
    """Yield the same as `_table`, a part at a time."""
    try:
        if not source.delimiter:
            with pq.ParquetFile(source.path, memory_map=True) as file:
                for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=list(names)):
                    yield pa.Table.from_batches([batch]).select(names)
            return
        blocks = pa_csv.ReadOptions(block_size=_BLOCK_BYTES)
        with pa_csv.open_csv(source.path, read_options=blocks, **_csv_options(source, names, numbers)) as reader:
            for batch in reader:
                yield pa.Table.from_batches([batch])
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
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
        f"{source.path} can't be read", why=_first_line(error), do="Replace the file, or move it out of the data folder."
    )


def _largest_time(source: CandleHeader) -> float | None:
    """Return the largest of a file's epoch numbers, which tells their unit; None where its times are no numbers."""
    largest = None
    for table in _batches(source, [source.columns["timestamp"]]):
        kind = table.column(0).type
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
            return None
        found = pc.max(table.column(0)).as_py()
        if found is not None:
            largest = float(found) if largest is None else max(largest, float(found))
    return largest


def _recognize(names: list[str]) -> dict[str, str]:
    plain = {name.strip().strip("<>").lower().replace(" ", "_").replace("-", "_"): name for name in reversed(names)}
    return {
        field: next(plain[known] for known in accepted if known in plain)
        for field, accepted in _NAMES.items()
        if plain.keys() & set(accepted)
    }


def _timestamps(source: CandleHeader, column: Any, largest: float | None) -> np.ndarray:
    """Turn a column of times into int64 nanoseconds UTC. `largest` is the file's largest number, where this is a part of it."""
    kind = column.type
    if column.null_count:
        raise DataError(f"{source.path} has {column.null_count} bars without a time", do="Drop those rows.")
    try:
        if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
            zone = getattr(kind, "tz", None)
            return np.array(column.cast(pa.timestamp("ns", zone)).cast(pa.int64()).to_numpy())  # a copy, which torch may share
        if pa.types.is_integer(kind) or pa.types.is_floating(kind):
            numbers = column.to_numpy()
            if not np.isfinite(numbers).all():
                raise ValueError("a time is not a number")
            return _from_epoch(numbers, float(numbers.max()) if largest is None else largest)
        import pandas as pd  # late: half a second, and only text needs it

        parsed: pd.Series = pd.to_datetime(pd.Series(column.cast(pa.string()).to_pylist()), utc=True, format="ISO8601")
        return np.asarray(parsed.to_numpy(dtype="datetime64[ns]").astype(np.int64))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
        raise DataError(
            f"{source.path} has a time that can't be read in column {source.columns['timestamp']}",
            why=_first_line(error),
            do="Write times as ISO 8601 text, timestamps, or epoch numbers.",
        ) from error


def _from_epoch(numbers: np.ndarray, largest: float) -> np.ndarray:
    """Turn epoch numbers of one unit, or dates written as 20211231, into nanoseconds. Raises ValueError for other numbers."""
    if largest < _FIRST_EPOCH:
        import pandas as pd  # late: half a second, and only numbers that are dates need it

        whole = pd.Series(numbers.astype(np.int64).astype(str))
        return np.asarray(pd.to_datetime(whole, format="%Y%m%d").to_numpy(dtype="datetime64[ns]").astype(np.int64))
    factor = next(factor for limit, factor in _EPOCH_UNITS if largest < limit)
    if numbers.dtype.kind in "iu":
        return np.asarray(numbers.astype(np.int64) * factor)
    return np.asarray(np.rint(numbers * factor).astype(np.int64))


def _floats(source: CandleHeader, name: str, column: Any) -> np.ndarray:
    try:
        return np.asarray(column.cast(pa.float64()).to_numpy())  # nulls become NaN
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise _no_number(source, name, error) from error


def _no_number(source: CandleHeader, name: str, error: Exception) -> DataError:
    what = f"{source.path} has something in column {name.strip()} that is no number"
    return DataError(what, why=_first_line(error), do="Correct the column, or leave it out.")


def _delimiter(path: Path) -> str:
    """Return the separator that the header line uses most."""
    with pa.input_stream(str(path)) as stream:
        header = stream.read(4096).split(b"\n")[0].decode("utf-8-sig")
    return max(",;\t|", key=header.count)


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0][:160]
