"""Candles: which files of a folder are meant, their bars joined by symbol and checked. Owns no features and no calendar.

A symbol comes from a column, else from the file's name `SYMBOL_TIMEFRAME_...`; a timeframe from the name, else it is the
commonest step. Files of one symbol and timeframe are joined; the same bars twice count once, and different bars for one time
are an error.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from trainer.data.sources import FIELDS, Held, Series, Source, candle_files, open_source, read_series, symbols_in, timeframe_of
from trainer.data.timeframes import SECOND, canonical, parse_name
from trainer.errors import DataError, nearest


@dataclass(frozen=True, kw_only=True)
class Candles:
    """The bars of one symbol, oldest first: `timestamp` (N,) int64 ns UTC, the bar's start; prices and volume (N,) float64.

    `columns` has further columns of the files, (N,) float64 by name: each bar's value, else the last one before it, NaN
    before the first.
    """

    symbol: str
    timeframe: str
    timestamp: np.ndarray
    open: np.ndarray
    high: np.ndarray
    low: np.ndarray
    close: np.ndarray
    volume: np.ndarray
    columns: Mapping[str, np.ndarray] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.timestamp)

    @property
    def columns_begin(self) -> int:
        """Return the first row at which every column has a value: 0 without columns, `len(self)` where one has none."""
        return max((int(np.isnan(values).sum()) for values in self.columns.values()), default=0)

    def rows(self, start: int, stop: int | None = None) -> Candles:
        """Return bars `start` to `stop` (exclusive) as views, with numpy's rules for negative numbers."""
        part = slice(start, stop)
        columns = {name: values[part] for name, values in self.columns.items()}
        return replace(self, **{name: getattr(self, name)[part] for name in ("timestamp", *FIELDS)}, columns=columns)


@dataclass(frozen=True, kw_only=True)
class FileRead:
    """A file that was read: the symbols taken from it with their bars, and all that it holds, taken or not.

    `further` are the names of its columns that are no part of a bar.
    """

    file: str
    timeframe: str
    symbols: tuple[str, ...]
    bars: int
    holds: tuple[Held, ...]
    further: tuple[str, ...]
    synthetic: bool


@dataclass(frozen=True, kw_only=True)
class CandleSet:
    """The candles asked for, by symbol, in the order asked for (else sorted)."""

    symbols: dict[str, Candles]
    timeframe: str
    files: tuple[FileRead, ...]
    synthetic: bool  # true when any file is

    @property
    def bars(self) -> int:
        """Bars of all symbols together, after the cut to the last ones."""
        return sum(len(candles) for candles in self.symbols.values())


def read_candles(
    path: Path,
    *,
    symbols: Sequence[str] = (),
    timeframe: str = "",
    bars: int = 0,
    columns: Sequence[str] = (),
    files: Collection[str] = (),
) -> CandleSet:
    """Read the candles of `symbols` (none: all) from a folder or a file, the last `bars` of each (0: all). Raises DataError.

    `columns` are further ones, which every file that is read must have; an empty cell takes the last earlier value.

    A file whose name or header shows that it can't matter is not read. `files` are the names of those that hold the symbols,
    where an earlier look has told: no other is opened.
    """
    wanted = tuple(dict.fromkeys(symbols))
    chosen = canonical(timeframe) if timeframe else ""
    sources = _open_sources(Path(path), wanted, chosen, files)
    frames = {source.path: timeframe_of(source) for source in sources}
    found = {source.path: symbols_in(source) for source in sources}
    if chosen:
        sources = [source for source in sources if frames[source.path] == chosen]
    _refuse_unknown(Path(path), wanted, chosen, {name for source in sources for name in found[source.path]}, frames.values())
    sources = [source for source in sources if not wanted or set(wanted) & set(found[source.path])]
    several = sorted({frames[source.path] for source in sources})
    if len(several) > 1:
        raise DataError(
            f"{path} holds candles of several timeframes: {', '.join(several)}",
            why="a run trains on one",
            do=f"Choose one, such as --timeframe {several[0]}.",
        )
    return _join(sources, wanted, several[0], bars, tuple(columns))


def _open_sources(path: Path, wanted: tuple[str, ...], chosen: str, known: Collection[str]) -> list[Source]:
    """Open the headers of the files that may hold what is wanted."""
    files = [file for file in candle_files(path) if not known or file.name in known]
    named = {file: parse_name(file.name.split(".")[0])[1] for file in files}
    possible = [file for file in files if not chosen or named[file] in ("", chosen)]
    if not possible:
        raise _no_such_timeframe(path, chosen, named.values())
    sources = [open_source(file) for file in possible]
    if path.is_file() and len(wanted) == 1 and not sources[0].name_timeframe and not sources[0].has_symbol_column:
        return [
            replace(sources[0], name_symbol=wanted[0])
        ]  # `predict --data my.csv`: the name says no symbol, so it is the one asked for
    return sources


def _refuse_unknown(path: Path, wanted: tuple[str, ...], chosen: str, known: set[str], frames: Iterable[str]) -> None:
    if not known:
        raise _no_such_timeframe(path, chosen, frames)
    for symbol in wanted:
        if symbol not in known:
            listed = sorted(known)
            shown = ", ".join(listed[:20]) + (f" and {len(listed) - 20} more" if len(listed) > 20 else "")
            at = f" at {chosen}" if chosen else ""
            raise DataError(
                f"unknown symbol '{symbol}'",
                why=f"{path} holds{at} {shown}",
                do=nearest(symbol, known) or "Choose one of these.",
            )


def _no_such_timeframe(path: Path, chosen: str, frames: Iterable[str]) -> DataError:
    listed = sorted({frame for frame in frames if frame})
    return DataError(
        f"{path} holds no candles of timeframe {chosen}",
        why=f"it holds {', '.join(listed)}",
        do=f"Choose --timeframe {listed[0]}.",
    )


def _join(sources: list[Source], wanted: tuple[str, ...], timeframe: str, bars: int, columns: tuple[str, ...]) -> CandleSet:
    parts: dict[str, list[Series]] = {}
    files = []
    for source in sources:
        series, held = read_series(source, set(wanted) or None, columns)
        if not source.has_symbol_column and wanted and series[0].symbol not in wanted:
            continue
        for item in series:
            _check_order(item)
            parts.setdefault(item.symbol, []).append(item)
        files.append(
            FileRead(
                file=source.path.name,
                timeframe=timeframe,
                symbols=tuple(sorted(item.symbol for item in series)),
                bars=sum(len(item.timestamp) for item in series),
                holds=tuple(sorted(held, key=lambda item: item.symbol)),
                further=source.further,
                synthetic=source.synthetic,
            )
        )
    candles = {symbol: _candles(symbol, timeframe, parts[symbol], bars, columns) for symbol in wanted or sorted(parts)}
    return CandleSet(symbols=candles, timeframe=timeframe, files=tuple(files), synthetic=any(file.synthetic for file in files))


def _candles(symbol: str, timeframe: str, parts: list[Series], bars: int, columns: tuple[str, ...]) -> Candles:
    timestamp, values = _merge(symbol, parts)
    for column in values[len(FIELDS) :]:
        column[:] = _carried(column)  # before the cut: its first bar may continue an older value
    if bars:
        timestamp, values = timestamp[-bars:], values[:, -bars:]
    _check_values(symbol, parts, timestamp, values, columns)
    return Candles(
        symbol=symbol,
        timeframe=timeframe,
        timestamp=timestamp,
        **dict(zip(FIELDS, values[: len(FIELDS)], strict=True)),
        columns=dict(zip(columns, values[len(FIELDS) :], strict=True)),
    )


def _carried(column_N: np.ndarray) -> np.ndarray:
    """Return a column in which an empty cell (NaN) has the last value before it."""
    last_N = np.maximum.accumulate(np.where(np.isnan(column_N), 0, np.arange(len(column_N))))
    return np.asarray(column_N[last_N])


def _merge(symbol: str, parts: list[Series]) -> tuple[np.ndarray, np.ndarray]:
    """Join sorted series by time; the same bar twice counts once, different bars for one time are an error."""
    if len(parts) == 1:
        return parts[0].timestamp, parts[0].values
    parts = sorted(parts, key=lambda part: int(part.timestamp[0]))
    timestamp = np.concatenate([part.timestamp for part in parts])
    values = np.concatenate([part.values for part in parts], axis=1)
    owner = np.repeat(np.arange(len(parts)), [len(part.timestamp) for part in parts])
    order = np.argsort(timestamp, kind="stable")
    timestamp, values, owner = timestamp[order], values[:, order], owner[order]
    same = np.flatnonzero(timestamp[1:] == timestamp[:-1])
    # Compared as float32, so that a copy stored with fewer digits is the same bar.
    one, other = values[:, same].astype(np.float32), values[:, same + 1].astype(np.float32)
    differs = ((one != other) & ~(np.isnan(one) & np.isnan(other))).any(axis=0)
    if differs.any():
        first = same[differs.argmax()]
        raise DataError(
            f"{parts[owner[first]].file} and {parts[owner[first + 1]].file} disagree about {symbol}",
            why=f"{int(differs.sum())} bars differ, the first at {time_text(timestamp[first])}",
            do="Keep one of the two files.",
        )
    keep = np.ones(len(timestamp), dtype=bool)
    keep[same + 1] = False
    return timestamp[keep], values[:, keep]


def _check_order(series: Series) -> None:
    steps = np.diff(series.timestamp)
    if not (steps <= 0).any():
        return
    first = int((steps <= 0).argmax())
    at = time_text(series.timestamp[first + 1])
    if steps[first] == 0:
        twice = int((steps == 0).sum())
        raise DataError(
            f"{series.file} has duplicate bars of {series.symbol}",
            why=f"{twice} in all, the first at {at}",
            do="Drop the duplicates.",
        )
    raise DataError(
        f"{series.file} has unsorted bars of {series.symbol}",
        why=f"{at} comes after {time_text(series.timestamp[first])}",
        do="Sort the file by time.",
    )


def _check_values(
    symbol: str, parts: list[Series], timestamp: np.ndarray, values: np.ndarray, columns: tuple[str, ...]
) -> None:
    """Raise DataError for bars that can't be: not finite, a price not above zero, high below low, negative volume."""
    prices, volume = values[:4], values[4]
    checks = [(f"{field} is NaN", np.isnan(row)) for field, row in zip(FIELDS, values, strict=False)]
    checks += [(f"{name} is infinite", np.isinf(row)) for name, row in zip((*FIELDS, *columns), values, strict=True)]
    checks += [(f"{field} is not above zero", row <= 0) for field, row in zip(FIELDS, prices, strict=False)]
    checks += [("high is below low", values[1] < values[2]), ("volume is negative", volume < 0)]
    for problem, bad in checks:
        if bad.any():
            row = int(bad.argmax())
            files = ", ".join(part.file for part in parts if part.timestamp[0] <= timestamp[row] <= part.timestamp[-1])
            raise DataError(
                f"{files}: {problem} in a bar of {symbol}",
                why=f"{int(bad.sum())} such bars, the first at {time_text(timestamp[row])}",
                do="Correct or drop those bars; a missing bar is handled as a hole.",
            )


def time_text(timestamp: int | np.integer) -> str:
    """Return a time in nanoseconds UTC as ISO 8601 text: `2021-03-01T00:00:00Z`, with a fraction only where there is one."""
    unit = next((unit for unit, length in (("s", SECOND), ("ms", SECOND // 1000)) if int(timestamp) % length == 0), "ns")
    return f"{np.datetime64(int(timestamp), 'ns').astype(f'datetime64[{unit}]')}Z"
