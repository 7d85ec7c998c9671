"""Files that a folder of candles has opened: whose bars each has, and what was read of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from trainer.data.read.candles import commonest_step
from trainer.data.read.headers import CandleHeader
from trainer.data.read.parts import Part
from trainer.data.read.side import SideFile
from trainer.data.read.sources import Held
from trainer.data.timeframes import can_resample, step_of


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
class CandleFile:
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


def settle(files: Sequence[CandleFile]) -> None:
    """Give files with a single bar, such as partitions by day, the timeframe of the others, else that of all
    their bars.
    """
    single = [file for file in files if not file.timeframe]
    others = {file.timeframe for file in files if file.timeframe}
    moments = np.unique([held.first for file in single for held in file.held.values()])
    timeframe = others.pop() if len(others) == 1 else commonest_step(moments)
    for file in single:
        file.timeframe = timeframe


def longest_of(held_by: list[CandleFile], chosen: str) -> list[CandleFile]:
    """Return those of a symbol's files with bars of a timeframe; if there are none, those of the longest bars
    to resample from.
    """
    if not chosen:
        return held_by
    usable = {
        file.timeframe for file in held_by if file.timeframe == chosen or can_resample(file.timeframe, chosen)
    }
    timeframe = chosen if chosen in usable else max(usable, key=step_of, default="")
    return [file for file in held_by if file.timeframe == timeframe]
