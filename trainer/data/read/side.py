"""Side series: values published beside the candles, such as sentiment or rates, joined to bars as of their
publication. `cross` makes such series of other symbols' bars.

The files NAME.side.csv, or several NAME.side.PART.parquet, lie beside the candle files: a column of times, or
one of dates and one of times of day, and one or more of numbers. A value is known `lag` after the time of its
row; a bar gets the newest that was known when the bar ended, and no later one. A series whose newest value is
too old for the last bar is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from trainer.base.errors import DataError, nearest
from trainer.base.text import counted
from trainer.data.read.arrow_files import arrow_schema, arrow_table, is_arrow
from trainer.data.read.bounds import (
    UNREADABLE,
    check_footer,
    first_line,
    refuse_much,
    refuse_types,
    text_stream,
)
from trainer.data.read.candles import Candles, time_text
from trainer.data.read.folders import check_name
from trainer.data.read.headers import CandleHeader
from trainer.data.read.oddities import DataNote
from trainer.data.read.shapes import DATES, NAMES, OPENS, plain_name
from trainer.data.read.times import nanoseconds
from trainer.data.side_names import SideColumn, side_name
from trainer.data.timeframes import step_of

MOST_STEPS = 3  # of the series, that a value may be old beyond its lag
_SEPARATORS = ",;\t|"


@dataclass(frozen=True, kw_only=True)
class SideFile:
    """A side file: times (N,) int64 ns UTC, ascending, and columns (N,) float64, NaN for an empty cell."""

    path: Path
    timestamp: np.ndarray
    columns: dict[str, np.ndarray]


@dataclass(frozen=True, kw_only=True)
class SideSeries:
    """The values (N,) of one side series, of all its files; `timestamp` (N,) int64 ns UTC, ascending."""

    column: SideColumn
    timestamp: np.ndarray
    values: np.ndarray
    files: tuple[SideFile, ...] = ()
    mark: str = ""  # the hash of the bars that it is made of
    begins: np.ndarray | None = None  # (N,): the first bar that a value is made of; None: its own time

    @property
    def oldest(self) -> int:
        """Return how long ago the time of a value may be when it is used, in nanoseconds. The step is the
        median one, since quarters have no length that most of them have.
        """
        step = int(np.median(np.diff(self.timestamp))) if len(self.timestamp) > 1 else 0
        return self.column.age or self.column.lag + MOST_STEPS * step

    def at(self, known_at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the newest values (M,) float64 known at these times, NaN before the first one, and their
        ages.
        """
        rows = self.rows_at(known_at)
        values = self.values[rows].astype(np.float64)
        values[rows < 0] = np.nan
        return values, known_at - self.timestamp[rows]

    def rows_at(self, known_at: np.ndarray) -> np.ndarray:
        """Return the rows (M,) int64 of the newest values known at these times, -1 before the first one."""
        return np.searchsorted(self.timestamp, known_at - self.column.lag, side="right") - 1


def side_files(path: Path) -> tuple[Path, ...]:
    """Return the side files beside the candles at `path`, a folder or a file, by name. Raises DataError for a
    name that an object can't have.
    """
    folder = path if path.is_dir() else path.parent
    try:
        files = tuple(item for item in sorted(folder.iterdir()) if side_name(item.name) and item.is_file())
    except OSError as error:
        raise DataError(
            f"cannot read {folder}", why=str(error.strerror), do="Check its permissions."
        ) from error
    for item in files:
        check_name(item.name)
    return files


def read_sides(path: Path, columns: Sequence[SideColumn]) -> tuple[SideSeries, ...]:
    """Return the side series of a job beside the candles at `path`. Raises DataError for one without a file,
    or whose files can't be used.
    """
    if not columns:
        return ()
    files = side_files(path)
    return tuple(_read(path, one, [file for file in files if one.is_in(file.name)]) for one in columns)


def side_errors(path: Path) -> dict[str, DataError]:
    """Return by file name what keeps the side files beside the candles at `path` from being one series."""
    errors: dict[str, DataError] = {}
    series: dict[str, list[Path]] = {}
    for file in side_files(path):
        series.setdefault(side_name(file.name), []).append(file)
    for name, files in series.items():
        try:
            shared = set.intersection(*(set(open_side(file).columns) for file in files))
            for column in sorted(shared):
                _read(path, SideColumn(entry=name, file=name, column=column), files)
        except DataError as error:
            errors |= {file.name: error for file in files}
    return errors


def with_sides(
    candles: Candles, sides: Sequence[SideSeries], files: Iterable[str] = ()
) -> tuple[Candles, list[DataNote]]:
    """Return the candles with each side series as a further column, and notes; `files` are the candle files
    of those that are made of bars. Raises DataError for one that has no value, or only old ones, for the last
    bar.
    """
    if not sides:
        return candles, []
    known_at = candles.timestamp + step_of(candles.timeframe)
    columns, notes, since = dict(candles.columns), list[DataNote](), candles.since
    for side in sides:
        values, ages = side.at(known_at)
        if np.isnan(values[-1]) or ages[-1] > side.oldest:
            raise _stale(side, known_at[-1])
        old = np.flatnonzero((ages > side.oldest) & ~np.isnan(values))
        if len(old):
            first = time_text(candles.timestamp[old[0]])
            text = f"values of {side.column.entry} are older than {_days(side.oldest)} in some bars"
            detail = f"{counted(len(old), 'bar')}, the first at {first}"
            notes.append(DataNote(subject=candles.symbol, text=text, detail=detail))
        columns[side.column.entry] = values
        begins = side.timestamp if side.begins is None else side.begins
        since = np.minimum(candles.timestamp if since is None else since, begins[side.rows_at(known_at)])
    beside = (file.path.name for side in sides for file in side.files)
    files = tuple(dict.fromkeys((*candles.files, *files, *beside)))
    marks = {side.column.entry: side.mark for side in sides if side.mark}
    return replace(candles, columns=columns, marks=marks, since=since, files=files), notes


def open_side(path: Path) -> SideFile:
    """Read a side file. Raises DataError for one that can't be used."""
    table = _table(path)
    names = table.column_names
    stripped = [name.strip() for name in names]
    if len(set(stripped)) < len(stripped):
        twice = next(name for name in stripped if stripped.count(name) > 1) or "''"
        raise DataError(f"{path} has two columns called {twice}", do="Rename one of them, or leave it out.")
    plain = {plain_name(name): name for name in reversed(names)}
    plain.pop(OPENS, None)  # a value is not known when its day opens
    time = next((plain[name] for name in NAMES["timestamp"] if name in plain), None)
    if time is None:
        why = f"its columns are {', '.join(names[:12])}"[:300]
        raise DataError(f"{path} has no column of times", why=why, do="Call it time.")
    is_clock = pa.types.is_time(table.column(time).type)  # of day, beside a column of dates
    dates = next((plain[name] for name in DATES if is_clock and name in plain), "")
    header = CandleHeader(
        path=path,
        file=path.name,
        columns={"timestamp": time},
        names=tuple(names),
        name_symbol="",
        name_timeframe="",
        synthetic=False,
        dates=dates,
    )
    timestamp, _ = nanoseconds(header, [table.column(name) for name in header.times])
    order = np.argsort(timestamp, kind="stable")
    numbers = [name for name in names if name not in header.times and name.strip()]  # no index of pandas
    columns = {
        name.strip(): _floats(path, name, table.column(name))[order]
        for name in numbers
        if _is_number(table.column(name).type)
    }
    if not columns or not len(timestamp):
        why = "there is no column of numbers" if len(timestamp) else "it has no rows"
        raise DataError(f"{path} has no values", why=why, do="Give it a time and a value in each row.")
    return SideFile(path=path, timestamp=timestamp[order], columns=columns)


def _read(path: Path, column: SideColumn, files: Sequence[Path]) -> SideSeries:
    if not files:
        do = f"Put {column.file}.side.csv beside the candles, or leave it out of data.columns."
        raise DataError(f"there is no side series {column.file}", why=f"{path} has no file of it", do=do)
    opened = [open_side(file) for file in files]
    parts = [_values(file, column) for file in opened]
    timestamp = np.concatenate([times for times, _ in parts])
    values = np.concatenate([each for _, each in parts])
    order = np.argsort(timestamp, kind="stable")
    timestamp, values = timestamp[order], values[order]
    same = np.flatnonzero(timestamp[1:] == timestamp[:-1])
    if (differs := values[same] != values[same + 1]).any():
        first = time_text(timestamp[same[differs.argmax()]])
        why = f"{counted(int(differs.sum()), 'time has', 'times have')} two values, the first at {first}"
        raise DataError(f"side series {column.file} contradicts itself", why=why, do="Keep one of them.")
    keep = np.ones(len(timestamp), dtype=bool)
    keep[same + 1] = False
    if not keep.any():
        raise DataError(f"side series {column.file} has no value", do="Fill the column.")
    return SideSeries(
        column=column,
        files=tuple(opened),
        timestamp=timestamp[keep],
        values=values[keep],
    )


def _values(file: SideFile, column: SideColumn) -> tuple[np.ndarray, np.ndarray]:
    """Return the times and the values of a file's rows that have one."""
    if not column.column and len(file.columns) > 1:
        names = ", ".join(list(file.columns)[:12])
        do = f"Name one, such as {column.file}.{next(iter(file.columns))} lag 1d."
        raise DataError(f"{file.path} has several columns", why=f"they are {names}", do=do)
    name = column.column or next(iter(file.columns))
    if name not in file.columns:
        why, do = f"its columns are {', '.join(list(file.columns)[:12])}", nearest(name, file.columns)
        raise DataError(f"{file.path} has no column {name}", why=why, do=do or "Name one of them.")
    values = file.columns[name]
    if np.isinf(values).any():
        first = time_text(file.timestamp[np.isinf(values).argmax()])
        raise DataError(f"{file.path} has an infinite {name}", why=f"the first at {first}", do="Correct it.")
    there = ~np.isnan(values)
    return file.timestamp[there], values[there]


def _table(path: Path) -> pa.Table:
    try:
        if is_arrow(path):
            return arrow_table(path, arrow_schema(path).names)
        if path.suffix.lower() in (".parquet", ".pq"):
            with pq.ParquetFile(path, memory_map=True) as file:
                check_footer(path, file.metadata)
                refuse_types(path, file.schema_arrow, file.schema_arrow.names)
                refuse_much(path, rows=file.metadata.num_rows, columns=len(file.schema_arrow.names))
                return file.read()
        with text_stream(path) as stream:
            head = stream.read(1 << 16).split(b"\n")[0].decode("utf-8-sig", errors="replace")
        options = pa_csv.ParseOptions(delimiter=max(_SEPARATORS, key=head.count))
        with text_stream(path) as stream:
            return pa_csv.read_csv(stream, parse_options=options)
    except UNREADABLE as error:
        do = "Write a header, and a time and a value in each row."
        raise DataError(f"{path} can't be read", why=first_line(error), do=do) from error


def _is_number(kind: pa.DataType) -> bool:
    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    return any(test(kind) for test in tests)


def _floats(path: Path, name: str, column: pa.ChunkedArray) -> np.ndarray:
    try:
        return np.array(column.cast(pa.float64()).to_numpy())  # nulls become NaN
    except UNREADABLE as error:
        what = f"{path} has a value in column {name.strip()} that is not a number"
        raise DataError(what, why=first_line(error), do="Correct the column, or leave it out.") from error


def _stale(side: SideSeries, last: np.integer) -> DataError:
    known = side.timestamp + side.column.lag <= last
    newest = time_text(side.timestamp[known][-1]) if known.any() else "none"
    why = f"bars end at {time_text(last)}, its newest value then: {newest}; {_days(side.oldest)} is the most"
    entry = side.column.entry.partition(" age ")[0]
    do = f"Bring newer values, or say how old one may be: {entry} age TIME in data.columns."
    return DataError(f"{side.column.title} is stale", why=why, do=do)


def _days(nanoseconds_: int) -> str:
    hours = nanoseconds_ / 3.6e12
    if hours < 2:
        return f"{hours * 60:g} minutes"
    return f"{hours / 24:g} days" if hours >= 48 else f"{hours:g} hours"
