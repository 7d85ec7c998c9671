"""Read the candles of a folder or file, one symbol in memory at a time: choose the files and join a symbol's
bars from them.

A file that is known, by its name or symbol column, to have one symbol is read when that symbol is requested.
Any other is read once, in parts, and split into an array file per symbol in the caller's scratch folder.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from trainer.base.errors import DataError
from trainer.base.files import HeldFolder
from trainer.base.signs import sign
from trainer.data.columns import told_of
from trainer.data.read.candles import Candles, commonest_step, join_series, resample
from trainer.data.read.fetch_record import fetch_notes
from trainer.data.read.file_names import is_copy, parse_flat_name
from trainer.data.read.folders import candle_files
from trainer.data.read.headers import CandleHeader, stem_of
from trainer.data.read.oddities import DataNote, lines_of, oddities
from trainer.data.read.parts import ARRAY, Part, append_array, close_array, load_array
from trainer.data.read.refusals import all_of, no_such_timeframe, refuse_unknown, several_timeframes, without
from trainer.data.read.shapes import FIELDS
from trainer.data.read.side import SideFile, SideSeries, read_sides, with_sides
from trainer.data.read.sources import Held, Series, held_of, open_candles, stream_series
from trainer.data.read.symbol_columns import FileSymbol, only_symbol, refuse_many_symbols
from trainer.data.side_names import split_sides
from trainer.data.timeframes import can_resample, canonical, step_of


@dataclass(frozen=True, kw_only=True)
class FileRead:
    """A file that was read: the symbols used with their number of bars, and everything that it holds, used or
    not.

    `further` are the names of its columns that are not part of a bar.
    """

    path: Path
    file: str
    timeframe: str
    symbols: tuple[str, ...]
    bars: int
    holds: tuple[Held, ...]
    further: tuple[str, ...]
    synthetic: bool


@dataclass(kw_only=True, eq=False)
class _CandleFile:
    """A candle file, or its split into `arrays` by symbol. `held` is known for symbols that were read."""

    source: CandleHeader
    timeframe: str
    written: Mapping[str, str]  # symbol -> its name in the file
    arrays: Mapping[str, Path] = field(default_factory=dict)
    held: dict[str, Held] = field(default_factory=dict)
    guess: str = ""  # how its times were read, where it leaves that open

    def part_of(self, symbol: str) -> Part:
        """Return the file, or the array, with a symbol's bars."""
        return Part(header=self.source, timeframe=self.timeframe, array=self.arrays.get(symbol))

    def summary(self, symbols: Sequence[str]) -> FileRead:
        """Return what was read of the file, if these symbols are used."""
        return FileRead(
            path=self.source.path,
            file=self.source.file,
            timeframe=self.timeframe,
            symbols=tuple(symbols),
            bars=sum(self.held[symbol].bars for symbol in symbols if symbol in self.held),
            holds=tuple(self.held[symbol] for symbol in sorted(self.held)),
            further=self.source.further,
            synthetic=self.source.synthetic,
        )


class CandleFolder:
    """The requested candles, by symbol. Raises DataError if there are none, or if it is ambiguous which.

    `symbols`, `exclude` and `timeframe` as in a job; `bars` is the number of last bars of each symbol (0:
    all). `columns` are those of a job: further columns that every file read must have (an empty cell takes
    the last earlier value), and what is told about those of a bar. `files` are the names of the files with
    these symbols, if a plan names them: no other is opened. A symbol without bars of the timeframe is
    resampled from shorter ones. Errors of files that can't be used are added to `unreadable` if it is given,
    and raised otherwise. `sides` are the side series among the columns, which `read` joins.
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
        unreadable: list[DataError] | None = None,
    ) -> None:
        self._unreadable = unreadable
        self._path = path
        self._scratch = scratch
        self._bars = bars
        self._told, further = told_of(columns)
        self._columns, sides = split_sides(further)
        self.sides = read_sides(path, sides)
        self._notes: list[DataNote] = []
        wanted = tuple(dict.fromkeys(symbols))
        chosen = canonical(timeframe) if timeframe else ""
        opened = self._opened(wanted, chosen, files)
        by_symbol = {symbol: _longest(opened, symbol, chosen) for file in opened for symbol in file.written}
        known = {symbol for symbol, held_by in by_symbol.items() if held_by}
        refuse_unknown(path, wanted, chosen, known, [file.timeframe for file in opened])
        exact = {symbol for symbol in known if by_symbol[symbol][0].timeframe == chosen}
        # If some symbols have the chosen timeframe, files of others are ignored.
        self.symbols = wanted or without(path, exact or known, exclude)
        self._of = {symbol: by_symbol[symbol] for symbol in self.symbols}
        self._files = [file for file in opened if any(file in held_by for held_by in self._of.values())]
        several = sorted({file.timeframe for file in self._files})
        if not chosen and len(several) > 1:
            raise several_timeframes(path, several)
        self.timeframe = chosen or several[0]
        self._note_files()

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the further columns that are read of each file."""
        return self._columns

    @property
    def synthetic(self) -> bool:
        """Return whether any of the files is synthetic."""
        return any(file.source.synthetic for file in self._files)

    @property
    def notes(self) -> tuple[str, ...]:
        """Return notes for the user, as lines, on the files and on the symbols read so far."""
        return lines_of(self._notes)

    @property
    def origins(self) -> tuple[str, ...]:
        """Return the sources of fetched files and how their symbols were chosen, as texts; () without any."""
        records = [file.source.fetched for file in self._files if file.source.fetched]
        return tuple(sorted({text for record in records for text in record.origins}))

    def notes_of(self, symbols: Collection[str]) -> tuple[str, ...]:
        """Return the `notes` without those only on other symbols and their files."""
        theirs = {file.source.file for symbol in symbols for file in self._of[symbol]}
        others = {file.source.file for file in self._files} - theirs
        for symbol in self._of.keys() - set(symbols):
            others |= {symbol, *(file.written[symbol] for file in self._of[symbol])}
        return lines_of([note for note in self._notes if note.subject not in others])

    def parts(self, symbol: str) -> tuple[Part, ...]:
        """Return the files with the symbol's bars, for `read_parts`, possibly in another process."""
        return tuple(file.part_of(symbol) for file in self._of[symbol])

    def read(self, symbol: str) -> Candles:
        """Return the symbol's candles. Raises DataError for impossible bars, and for files that disagree."""
        files = self._of[symbol]
        series = [part.read(symbol, self._columns) for part in self.parts(symbol)]
        for file, one in zip(files, series, strict=True):
            name = FileSymbol(symbol=symbol, written=file.written[symbol])
            file.held.setdefault(symbol, held_of(name, one.timestamp))
            self._note_guess(file, one)
        is_base = files[0].timeframe == self.timeframe
        bars = join_series(
            symbol, files[0].timeframe, series, self._columns, bars=self._bars if is_base else 0
        )
        candles = bars if is_base else resample(bars, self.timeframe).rows(-self._bars)
        candles, notes = with_sides(candles, self.sides)
        self._notes += [note for note in (*oddities(bars), *notes) if note not in self._notes]
        return candles

    def read_as_is(self, symbol: str) -> list[Series]:
        """Return the symbol's bars of each file, in any order, some twice. A file that can't be read is added
        to `unreadable` if it was given; raises its DataError otherwise.
        """
        series = []
        for file, part in zip(self._of[symbol], self.parts(symbol), strict=True):
            try:
                series.append(part.read_as_is(symbol, self._columns))
                self._note_guess(file, series[-1])
            except DataError as error:
                if self._unreadable is None:
                    raise
                self._unreadable.append(error)
        return series

    def files(self) -> tuple[FileRead, ...]:
        """Return the files. Call it after every symbol was read; bars of symbols that could not be read are
        not counted.
        """
        read = [
            file.summary([symbol for symbol in sorted(self.symbols) if file in self._of[symbol]])
            for file in self._files
        ]
        beside = {file.path: side_read(file) for side in self.sides for file in side.files}
        return (*read, *beside.values())

    def _opened(self, wanted: tuple[str, ...], chosen: str, known: Collection[str]) -> list[_CandleFile]:
        """Return the files that may have the wanted bars: those of the timeframe, and if needed those of
        shorter bars.
        """
        listing = candle_files(self._path)
        for name in listing.not_read:
            text = f"its folder {name}/ is not read, because there are candle files beside it"
            self._note(str(self._path), text)
        paths = {file.file: file.path for file in listing.files if not known or file.file in known}
        named = {file: parse_flat_name(stem_of(file))[1] for file in paths}
        usable = [file for file in paths if not chosen or named[file] in ("", chosen)]
        opened = self._open_all({file: paths[file] for file in usable}, wanted)
        _settle(opened)
        there = {
            symbol for file in opened if not chosen or file.timeframe == chosen for symbol in file.written
        }
        if chosen and (not there or set(wanted) - there):
            usable = [
                file
                for file in paths
                if named[file] not in ("", chosen) and can_resample(named[file], chosen)
            ]
            opened += self._open_all({file: paths[file] for file in usable}, wanted)
        if not opened:
            raise no_such_timeframe(self._path, chosen, named.values())
        return opened

    def _open_all(self, paths: Mapping[str, Path], wanted: tuple[str, ...]) -> list[_CandleFile]:
        """Open files by name. Raises DataError that names all that can't be used."""
        opened, errors = list[_CandleFile](), list[DataError]()
        for name, path in paths.items():
            try:
                opened.append(self._open(path, name, wanted))
            except DataError as error:
                errors.append(error)
        if self._unreadable is not None and opened:
            self._unreadable += errors
        elif errors:
            raise errors[0] if len(errors) == 1 else all_of(errors, len(paths))
        return opened

    def _open(self, path: Path, name: str, wanted: tuple[str, ...]) -> _CandleFile:
        """Return a file's symbols and timeframe; split it unless it is known to have one symbol of one
        timeframe.
        """
        source = open_candles(path, name, self._told)
        timeframe = source.name_timeframe
        if path == self._path and len(wanted) == 1 and not timeframe and not source.has_symbol_column:
            # `predict --data my.csv`: the name has no symbol, so it is the requested one
            source = replace(source, name_symbol=wanted[0])
        only = only_symbol(source)
        if only is not None and timeframe:
            return _CandleFile(source=source, timeframe=timeframe, written={only.symbol: only.written})
        # Without a timeframe in the name, the steps of the longest series determine it, whether it is wanted
        # or not.
        arrays, held, guess = self._split(source, set(wanted) if wanted and timeframe else None)
        longest = max(held.values(), key=lambda item: item.bars)
        if not timeframe and longest.bars > 1:
            timeframe = commonest_step(np.unique(load_array(arrays[longest.symbol])["timestamp"]))
        written = {symbol: item.written or symbol for symbol, item in sorted(held.items())}
        return _CandleFile(
            source=source, timeframe=timeframe, written=written, arrays=arrays, held=held, guess=guess
        )

    def _split(
        self, source: CandleHeader, symbols: set[str] | None
    ) -> tuple[dict[str, Path], dict[str, Held], str]:
        """Write the bars of each of `symbols` (None: all) to an array file; return these files, the file's
        content, and how its times were read.
        """
        folder = Path(tempfile.mkdtemp(dir=self._scratch))
        arrays: dict[str, Path] = {}
        held: dict[str, Held] = {}
        guess = ""
        for series, holds in stream_series(source.with_columns(self._columns), symbols):
            for item in holds:
                held[item.symbol] = held[item.symbol].joined(item) if item.symbol in held else item
            refuse_many_symbols(source, len(held))
            for part in series:
                guess = part.guess
                # By number: a symbol may not be a valid file name.
                path = arrays.setdefault(part.symbol, folder / f"{len(arrays)}{ARRAY}")
                append_array(path, part)
        for symbol, path in arrays.items():
            values = len(FIELDS) + len(self._columns) + len(source.actions)
            close_array(path, values=values, bars=held[symbol].bars)
        return arrays, held, guess

    def _note_files(self) -> None:
        """Add notes on files: other names, adjusted prices, replaced volumes, resampled bars."""
        for file in self._files:
            source = file.source
            for symbol in sorted(self._of.keys() & file.written.keys()):
                if (written := file.written[symbol]) != symbol:
                    self._note(written, "a name can't contain a slash", f"it trains as {symbol}")
                if file.timeframe != self.timeframe and file in self._of[symbol]:
                    self._note(symbol, f"bars of {self.timeframe} are made from bars of {file.timeframe}")
            if is_copy(stem_of(source.file)):
                self._note(
                    source.file, "its name ends as a copy's; its bars are joined with those of the first"
                )
            if source.adjusted:
                self._note(source.file, f"prices are adjusted by column {source.adjusted.strip()}")
            for text, detail in fetch_notes(source.fetched) if source.fetched else ():
                self._note(source.file, text, detail)
            if source.chosen:
                self._note(source.file, ", ".join(source.chosen))
            if "volume" not in source.columns:
                self._note(source.file, "there is no volume, so it counts as zero")
            elif source.columns["volume"] == source.ticks:
                self._note(source.file, f"volume is column {source.ticks.strip()}, as there is no other")

    def _note_guess(self, file: _CandleFile, series: Series) -> None:
        if guess := file.guess or series.guess:
            self._note(file.source.file, guess)

    def _note(self, subject: str, text: str, detail: str = "") -> None:
        note = DataNote(subject=subject, text=text, detail=detail)
        if note not in self._notes:
            self._notes.append(note)


def _settle(files: Sequence[_CandleFile]) -> None:
    """Give files with a single bar, such as partitions by day, the timeframe of the others, else that of all
    their bars.
    """
    single = [file for file in files if not file.timeframe]
    if not single:
        return
    others = {file.timeframe for file in files if file.timeframe}
    moments = np.unique([held.first for file in single for held in file.held.values()])
    timeframe = others.pop() if len(others) == 1 else commonest_step(moments)
    for file in single:
        file.timeframe = timeframe


def _longest(files: Sequence[_CandleFile], symbol: str, chosen: str) -> list[_CandleFile]:
    """Return the files with a symbol's bars of a timeframe; if there are none, those of the longest bars to
    resample from.
    """
    held_by = [file for file in files if symbol in file.written]
    if not chosen:
        return held_by
    usable = {
        file.timeframe for file in held_by if file.timeframe == chosen or can_resample(file.timeframe, chosen)
    }
    timeframe = chosen if chosen in usable else max(usable, key=step_of, default="")
    return [file for file in held_by if file.timeframe == timeframe]


def read_parts(
    symbol: str,
    timeframe: str,
    parts: Sequence[Part],
    *,
    bars: int = 0,
    columns: Sequence[str] = (),
    sides: Sequence[SideSeries] = (),
) -> Candles:
    """Return a symbol's candles from the files of `CandleFolder.parts` and its `sides`. Raises DataError."""
    base = parts[0].timeframe
    sign("symbol read")
    columns, _ = split_sides(told_of(columns)[1])  # what is told is in the parts
    series = [part.read(symbol, columns) for part in parts]
    if base == timeframe:
        return with_sides(join_series(symbol, base, series, columns, bars=bars), sides)[0]
    longer = resample(join_series(symbol, base, series, columns), timeframe).rows(-bars)
    return with_sides(longer, sides)[0]


def side_read(file: SideFile) -> FileRead:
    """Return what a side file holds: rows, and columns of numbers; no bars of a symbol."""
    return FileRead(
        path=file.path,
        file=file.path.name,
        timeframe="",
        symbols=(),
        bars=len(file.timestamp),
        holds=(),
        further=tuple(file.columns),
        synthetic=False,
    )


def read_candles(
    path: Path,
    *,
    symbols: Sequence[str] = (),
    timeframe: str = "",
    bars: int = 0,
    columns: Sequence[str] = (),
) -> dict[str, Candles]:
    """Return the candles of `symbols` (none: all) of a folder or file, in this order, as `CandleFolder` reads
    them.
    """
    with HeldFolder("candles") as scratch:
        folder = CandleFolder(
            Path(path), Path(scratch), symbols=symbols, timeframe=timeframe, bars=bars, columns=columns
        )
        return {symbol: folder.read(symbol) for symbol in folder.symbols}
