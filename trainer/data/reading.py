"""The candles of a folder or file, one symbol in memory at a time: which files are meant, and a symbol's bars from all of them.

A file that its name or its column shows to hold one symbol stays as it is, and is read when that symbol is asked for. Any
other is read once, a part at a time, and split into one array file a symbol in a scratch folder, which belongs to the caller.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from trainer.data.candles import Candles, candles_of, check_order
from trainer.data.headers import FIELDS, CandleHeader, candle_files, open_source
from trainer.data.sources import Held, Series, held_of, read_series, stream_series
from trainer.data.symbol_columns import only_symbol
from trainer.data.timeframes import canonical, commonest_step, parse_name
from trainer.errors import DataError, nearest

ARRAY = ".npy"


class OtherTimeframe(DataError):
    """The candles have other timeframes than the one asked for."""


@dataclass(frozen=True, kw_only=True)
class FileRead:
    """A file that was read: the symbols taken from it with their bars, and all that it holds, taken or not.

    `further` are the names of its columns that are no part of a bar.
    """

    path: Path
    timeframe: str
    symbols: tuple[str, ...]
    bars: int
    holds: tuple[Held, ...]
    further: tuple[str, ...]
    synthetic: bool

    @property
    def file(self) -> str:
        """Return its name."""
        return self.path.name


@dataclass(frozen=True, kw_only=True)
class Part:
    """A file with bars of one symbol: a candle file that holds no other, or an array file made from the candle file `file`."""

    path: Path
    file: str


@dataclass(kw_only=True)
class _CandleFile:
    """A candle file: as it is, or split into `arrays` by symbol. What it holds of a symbol is known once that was read."""

    source: CandleHeader
    timeframe: str
    symbols: tuple[str, ...]
    arrays: Mapping[str, Path] | None = None
    held: dict[str, Held] = field(default_factory=dict)


class CandleFolder:
    """The candles asked for, by symbol. Raises DataError where nothing, or nothing clear, is meant.

    `symbols`, `exclude` and `timeframe` as in a job; `bars` are the last of each symbol (0: all). `columns` are further ones,
    which every file that is read must have; an empty cell takes the last earlier value. `files` are the names of those that
    hold the symbols, where a plan names them: no other is opened.
    """

    def __init__(
        self,
        path: Path,
        scratch: Path,
        *,
        symbols: Sequence[str] = (),
        exclude: Collection[str] = (),
        timeframe: str = "",
        bars: int = 0,
        columns: Sequence[str] = (),
        files: Collection[str] = (),
    ) -> None:
        self._scratch, self._bars, self._columns = scratch, bars, tuple(columns)
        wanted = tuple(dict.fromkeys(symbols))
        chosen = canonical(timeframe) if timeframe else ""
        looks = [self._look(source, wanted) for source in _open_sources(path, wanted, chosen, files)]
        matching = [file for file in looks if file.timeframe == chosen] if chosen else looks
        known = {symbol for file in matching for symbol in file.symbols}
        _refuse_unknown(path, wanted, chosen, known, [file.timeframe for file in looks])
        self.symbols = wanted or _without(path, known, exclude)
        self._files = [file for file in matching if set(self.symbols) & set(file.symbols)]
        several = sorted({file.timeframe for file in self._files})
        if len(several) > 1:
            raise DataError(
                f"{path} holds candles of several timeframes: {', '.join(several)}",
                why="a run trains on one",
                do=f"Choose one, such as --timeframe {several[0]}.",
            )
        self.timeframe = several[0]

    @property
    def synthetic(self) -> bool:
        """Return whether any of the files is synthetic."""
        return any(file.source.synthetic for file in self._files)

    def parts(self, symbol: str) -> tuple[Part, ...]:
        """Return the files with the symbol's bars, for `read_parts`, which another process may call."""
        return tuple(
            Part(path=file.source.path if file.arrays is None else file.arrays[symbol], file=file.source.path.name)
            for file in self._files
            if symbol in file.symbols
        )

    def read(self, symbol: str) -> Candles:
        """Return the symbol's candles. Raises DataError for bars that can't be, and for files that disagree."""
        series = _series_of(symbol, self.parts(symbol), self._columns)
        for file, one in zip((file for file in self._files if symbol in file.symbols), series, strict=True):
            file.held.setdefault(symbol, held_of(symbol, one.timestamp))
        return candles_of(symbol, self.timeframe, series, self._bars, self._columns)

    def rows(self, symbol: str) -> int:
        """Return how many rows the files have of a symbol that was read, before they are joined and cut to the last bars."""
        return sum(file.held[symbol].bars for file in self._files if symbol in file.held)

    def files(self) -> tuple[FileRead, ...]:
        """Return the files, once every symbol was read; without the bars of those that could not be."""
        return tuple(
            FileRead(
                path=file.source.path,
                timeframe=file.timeframe,
                symbols=tuple(sorted(set(self.symbols) & set(file.symbols))),
                bars=sum(file.held[symbol].bars for symbol in set(self.symbols) & file.held.keys()),
                holds=tuple(file.held[symbol] for symbol in sorted(file.held)),
                further=file.source.further,
                synthetic=file.source.synthetic,
            )
            for file in self._files
        )

    def _look(self, source: CandleHeader, wanted: tuple[str, ...]) -> _CandleFile:
        """Find out what a file holds; split it unless it is known to hold one symbol of one timeframe."""
        only = only_symbol(source)
        if only is not None and source.name_timeframe:
            return _CandleFile(source=source, timeframe=source.name_timeframe, symbols=(only,))
        # Where the steps between bars have to tell the timeframe, those of the longest series do, wanted or not.
        arrays, held = self._split(source, set(wanted) if wanted and source.name_timeframe else None)
        timeframe = source.name_timeframe
        if not timeframe:
            longest = max(held.values(), key=lambda item: item.bars)
            timeframe = commonest_step(_load(arrays[longest.symbol])["timestamp"])
        return _CandleFile(source=source, timeframe=timeframe, symbols=tuple(sorted(held)), arrays=arrays, held=held)

    def _split(self, source: CandleHeader, symbols: set[str] | None) -> tuple[dict[str, Path], dict[str, Held]]:
        """Write the bars of each symbol (None: of all) to an array file; return the array files, and what is held."""
        folder = Path(tempfile.mkdtemp(dir=self._scratch))
        arrays: dict[str, Path] = {}
        held: dict[str, Held] = {}
        for series, holds in stream_series(source, symbols, self._columns):
            for item in holds:
                before = held.get(item.symbol)
                held[item.symbol] = replace(item, bars=item.bars + before.bars, first=before.first) if before else item
            for part in series:
                # By number: a symbol is whatever the file says, and no name of a file.
                path = arrays.setdefault(part.symbol, folder / f"{len(arrays)}{ARRAY}")
                _append(path, part)
        for symbol, path in arrays.items():
            with path.open("r+b") as file:
                _write_header(file, _row(len(FIELDS) + len(self._columns)), held[symbol].bars)
        return arrays, held


def read_parts(symbol: str, timeframe: str, parts: Sequence[Part], *, bars: int = 0, columns: Sequence[str] = ()) -> Candles:
    """Return a symbol's candles from files that `CandleFolder.parts` named. Raises DataError."""
    return candles_of(symbol, timeframe, _series_of(symbol, parts, columns), bars, columns)


def read_candles(
    path: Path, *, symbols: Sequence[str] = (), timeframe: str = "", bars: int = 0, columns: Sequence[str] = ()
) -> dict[str, Candles]:
    """Read the candles of `symbols` (none: all) from a folder or a file, in this order, as `CandleFolder` does."""
    with tempfile.TemporaryDirectory(prefix="mayfly-candles-") as scratch:
        folder = CandleFolder(Path(path), Path(scratch), symbols=symbols, timeframe=timeframe, bars=bars, columns=columns)
        return {symbol: folder.read(symbol) for symbol in folder.symbols}


def _series_of(symbol: str, parts: Sequence[Part], columns: Sequence[str]) -> list[Series]:
    series = []
    for part in parts:
        if part.path.suffix == ARRAY:
            rows = _load(part.path)
            timestamp, values = rows["timestamp"].copy(), np.ascontiguousarray(rows["values"].T)
            series.append(Series(file=part.file, symbol=symbol, timestamp=timestamp, values=values))
        else:
            source = open_source(part.path)
            whole, *others = read_series(source, columns)
            if others or source.has_symbol_column and whole.symbol != symbol:
                what = f"{part.file} holds other symbols than when it was opened"
                raise DataError(what, why=f"{whole.symbol} beside {symbol}", do="Write the file again.")
            series.append(replace(whole, symbol=symbol))
        check_order(series[-1])
    return series


def _append(path: Path, part: Series) -> None:
    row = _row(len(part.values))
    rows = np.empty(len(part.timestamp), dtype=row)
    rows["timestamp"], rows["values"] = part.timestamp, part.values.T
    with path.open("ab") as file:
        if not file.tell():
            _write_header(file, row, 0)
        rows.tofile(file)


def _row(width: int) -> np.dtype[Any]:
    """Return the row of an array file, whose bars have so many values."""
    return np.dtype([("timestamp", "<i8"), ("values", "<f8", (width,))])


def _write_header(file: BinaryIO, row: np.dtype[Any], bars: int) -> None:
    """Write the header of an array file. Numpy pads it so that the number of rows may be written again when it is known."""
    np.lib.format.write_array_header_1_0(
        file, {"descr": np.lib.format.dtype_to_descr(row), "fortran_order": False, "shape": (bars,)}
    )


def _load(path: Path) -> np.ndarray:
    """Return the rows of an array file, mapped and not read."""
    return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))


def _open_sources(path: Path, wanted: tuple[str, ...], chosen: str, known: Collection[str]) -> list[CandleHeader]:
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


def _without(path: Path, known: set[str], exclude: Collection[str]) -> tuple[str, ...]:
    """Return the known symbols but for some. Raises DataError for one of those that is not known, and where none is left."""
    for symbol in exclude:
        if symbol not in known:
            do = nearest(symbol, known) or "Leave it out of data.exclude."
            raise DataError(f"unknown symbol '{symbol}' in data.exclude", why=f"{path} does not hold it", do=do)
    if not known - set(exclude):
        raise DataError(
            "no symbol is left to train", why=f"data.exclude names all of {path}", do="Leave one out of data.exclude."
        )
    return tuple(sorted(known - set(exclude)))


def _no_such_timeframe(path: Path, chosen: str, frames: Iterable[str]) -> OtherTimeframe:
    listed = sorted({frame for frame in frames if frame})
    return OtherTimeframe(
        f"{path} holds no candles of timeframe {chosen}",
        why=f"it holds {', '.join(listed)}",
        do=f"Choose --timeframe {listed[0]}.",
    )
