"""Read the candles of a folder or file, one symbol in memory at a time: choose the files and join a symbol's
bars from them.

A file that is known, by its name or symbol column, to have one symbol is read when that symbol is requested.
Any other is read once, in parts, and split into an array file per symbol in the caller's scratch folder.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from trainer.base.errors import DataError
from trainer.base.files import HeldFolder
from trainer.base.signs import sign
from trainer.data.columns import told_of
from trainer.data.read.candles import Candles, commonest_step, join_series, resample
from trainer.data.read.cross import read_cross
from trainer.data.read.fetch_record import fetch_notes
from trainer.data.read.file_names import is_copy, parse_flat_name
from trainer.data.read.folders import candle_files
from trainer.data.read.headers import CandleHeader, stem_of
from trainer.data.read.oddities import DataNote, lines_of, oddities
from trainer.data.read.opened import CandleFile, FileRead, longest_of, settle, side_read
from trainer.data.read.parts import ARRAY, Part, append_array, close_array, load_array
from trainer.data.read.refusals import (
    all_of,
    no_such_timeframe,
    refuse_nameless,
    refuse_unknown,
    several_timeframes,
    without,
)
from trainer.data.read.shapes import FIELDS
from trainer.data.read.side import SideSeries, read_sides, with_sides
from trainer.data.read.sources import Held, Series, held_of, open_candles, stream_series
from trainer.data.read.symbol_columns import FileSymbol, only_symbol, refuse_many_symbols
from trainer.data.side_names import reads_index, refuse_missing, split_sides, symbols_beside
from trainer.data.timeframes import can_resample, canonical


class CandleFolder:
    """The requested candles, by symbol. Raises DataError if there are none, or if it is ambiguous which.

    `symbols`, `exclude` and `timeframe` as in a job; `bars` is the number of last bars of each symbol (0:
    all). `columns` are those of a job: further columns that every file read must have (an empty cell takes
    the last earlier value), and what is told about those of a bar. `files` are the names of the files with
    these symbols, if a plan names them: no other is opened. A symbol without bars of the timeframe is
    resampled from shorter ones. Errors of files that can't be used are added to `unreadable` if it is given,
    and raised otherwise. `index` are the members of the index, if a side series among the columns reads it.
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
        self._columns, self._beside = split_sides(further)
        self._sides: tuple[SideSeries, ...] | DataError | None = None
        self._from_files = read_sides(path, [side for side in self._beside if side.file])
        self._notes: dict[DataNote, None] = {}
        wanted = tuple(dict.fromkeys(symbols))
        chosen = canonical(timeframe) if timeframe else ""
        beside = symbols_beside(self._beside, self._told.index)
        # the members of the index are known once all files are open
        self._splits_all = reads_index(self._beside) and not self._told.index
        opened = self._opened(wanted, tuple(beside), chosen, files)
        written: dict[str, list[CandleFile]] = {}
        for file in opened:
            for symbol in file.written:
                written.setdefault(symbol, []).append(file)
        by_symbol = {symbol: longest_of(held_by, chosen) for symbol, held_by in written.items()}
        known = {symbol for symbol, held_by in by_symbol.items() if held_by}
        refuse_unknown(path, wanted, chosen, known, [file.timeframe for file in opened])
        exact = {symbol for symbol in known if by_symbol[symbol][0].timeframe == chosen}
        # If some symbols have the chosen timeframe, files of others are ignored.
        self.symbols = wanted or without(path, exact or known, exclude)
        self.index = self._told.index
        if self._splits_all:
            self.index = without(path, exact or known, {*exclude} & (exact or known))
        beside = symbols_beside(self._beside, self.index)
        refuse_missing(beside, known, str(path))
        self._of = {symbol: by_symbol[symbol] for symbol in dict.fromkeys((*self.symbols, *beside))}
        used = {file for held_by in self._of.values() for file in held_by}
        self._files = [file for file in opened if file in used]
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
        sides = self.sides  # first: their bars are gone when these are read
        candles = self._joined(symbol, self._columns, bars=self._bars)
        candles, notes = with_sides(candles, sides, self._files_beside())
        self._notes |= dict.fromkeys(notes)
        return candles

    @property
    def sides(self) -> tuple[SideSeries, ...]:
        """Return the side series among the columns, which `read` joins; those of other symbols' bars are read
        once, the first time. Raises DataError.
        """
        if self._sides is None:
            try:
                made = {side.column.entry: side for side in self._from_files}
                made |= read_cross(
                    [side for side in self._beside if side.symbol],
                    members=self.index,
                    read=self._whole,
                )
                self._sides = tuple(made[side.entry] for side in self._beside)
            except DataError as error:
                self._sides = error
        if isinstance(self._sides, DataError):
            raise DataError(self._sides.what, why=self._sides.why, do=self._sides.do)
        return self._sides

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
        used: dict[CandleFile, list[str]] = {file: [] for file in self._files}
        for symbol in sorted(self.symbols):
            for file in self._of[symbol]:
                used[file].append(symbol)
        read = [file.summary(symbols) for file, symbols in used.items()]
        beside = {file.path: side_read(file) for side in self._from_files for file in side.files}
        return (*read, *beside.values())

    def _whole(self, symbol: str) -> Candles:
        """Return all bars of a symbol that side series read, without further columns. Raises DataError."""
        split = any(part.array for part in self.parts(symbol))  # a copy has its file's columns
        return replace(self._joined(symbol, self._columns if split else ()), columns={})

    def _joined(self, symbol: str, columns: Sequence[str], *, bars: int = 0) -> Candles:
        """Return a symbol's last bars (0: all), joined from its files. Raises DataError."""
        files = self._of[symbol]
        series = [part.read(symbol, columns) for part in self.parts(symbol)]
        for file, one in zip(files, series, strict=True):
            name = FileSymbol(symbol=symbol, written=file.written[symbol])
            file.held.setdefault(symbol, held_of(name, one.timestamp))
            self._note_guess(file, one)
        is_base = files[0].timeframe == self.timeframe
        joined = join_series(symbol, files[0].timeframe, series, columns, bars=bars if is_base else 0)
        candles = joined if is_base else resample(joined, self.timeframe).rows(-bars)
        self._notes |= dict.fromkeys(oddities(joined))
        return candles

    def _files_beside(self) -> list[str]:
        """Return the flat names of the files with the bars that side series read."""
        symbols = symbols_beside(self._beside, self.index)
        return [file.source.file for symbol in symbols for file in self._of[symbol]]

    def _opened(
        self, symbols: tuple[str, ...], beside: tuple[str, ...], chosen: str, known: Collection[str]
    ) -> list[CandleFile]:
        """Return the files that may have the bars of `symbols` (none: all) and those that side series read,
        `beside`: files of the timeframe, and if needed those of shorter bars.
        """
        needed = dict.fromkeys((*symbols, *beside))
        wanted = tuple(needed) if symbols else ()
        listing = candle_files(self._path)
        for name in listing.not_read:
            text = f"its folder {name}/ is not read, because there are candle files beside it"
            self._note(str(self._path), text)
        paths = {file.file: file.path for file in listing.files if not known or file.file in known}
        named = {file: parse_flat_name(stem_of(file))[1] for file in paths}
        usable = [file for file in paths if not chosen or named[file] in ("", chosen)]
        opened = self._open_all({file: paths[file] for file in usable}, wanted)
        settle(opened)
        there = {
            symbol for file in opened if not chosen or file.timeframe == chosen for symbol in file.written
        }
        if chosen and (not there or needed.keys() - there):
            usable = [
                file
                for file in paths
                if named[file] not in ("", chosen) and can_resample(named[file], chosen)
            ]
            opened += self._open_all({file: paths[file] for file in usable}, wanted)
        if not opened:
            raise no_such_timeframe(self._path, chosen, named.values())
        sources = [file.source for file in opened]
        refuse_nameless(self._path, {one.name_symbol for one in sources if not one.has_symbol_column})
        return opened

    def _open_all(self, paths: Mapping[str, Path], wanted: tuple[str, ...]) -> list[CandleFile]:
        """Open files by name. Raises DataError that names all that can't be used."""
        opened, errors = list[CandleFile](), list[DataError]()
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

    def _open(self, path: Path, name: str, wanted: tuple[str, ...]) -> CandleFile:
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
            return CandleFile(source=source, timeframe=timeframe, written={only.symbol: only.written})
        # Without a timeframe in the name, the steps of the longest series determine it, whether it is wanted
        # or not.
        some = wanted and timeframe and not self._splits_all
        arrays, held, guess = self._split(source, set(wanted) if some else None)
        longest = max(held.values(), key=lambda item: item.bars)
        if not timeframe and longest.bars > 1:
            timeframe = commonest_step(np.unique(load_array(arrays[longest.symbol])["timestamp"]))
        written = {symbol: item.written or symbol for symbol, item in sorted(held.items())}
        return CandleFile(
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

    def _note_guess(self, file: CandleFile, series: Series) -> None:
        if guess := file.guess or series.guess:
            self._note(file.source.file, guess)

    def _note(self, subject: str, text: str, detail: str = "") -> None:
        self._notes[DataNote(subject=subject, text=text, detail=detail)] = None


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
