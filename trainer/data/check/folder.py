"""Check the candles of a folder or file as a training would read them, one symbol in memory at a time, and
list everything that is wrong, not the first only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainer.base.errors import DataError
from trainer.base.files import HeldFolder
from trainer.data.check.findings import SymbolCheck, check_symbol
from trainer.data.read.reading import CandleFolder
from trainer.data.read.refusals import SeveralTimeframes
from trainer.data.table import DataSettings

EachSymbol = Callable[[SymbolCheck], None]


@dataclass(kw_only=True)
class FolderCheck:
    """The check of a folder: each symbol's, without its bars; files that can't be read; and notes as a plan
    has them.
    """

    path: Path
    symbols: list[SymbolCheck] = field(default_factory=list)
    unreadable: list[DataError] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def is_refused(self) -> bool:
        """Return whether training leaves a symbol out, or can't read a file."""
        return bool(self.unreadable) or any(one.is_refused for one in self.symbols)

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "path": str(self.path),
            "symbols": [one.to_dict() for one in self.symbols],
            "unreadable": [error.as_dict() for error in self.unreadable],
            "notes": self.notes,
        }


def check_folder(path: Path, data: DataSettings, each: EachSymbol = lambda one: None) -> FolderCheck:
    """Check the candles at `path` by a job's settings, and call `each` for every symbol while its bars are in
    memory. Raises DataError if there are no candle files, or if the settings name what they don't hold.
    """
    made = FolderCheck(path=path)
    with HeldFolder("candles") as scratch:
        for folder in _folders(path, data, Path(scratch), made.unreadable):
            for symbol in folder.symbols:
                if (one := _check(folder, symbol, data)) is None:
                    continue
                each(one)
                made.symbols.append(one.without_bars())
            made.notes += [note for note in folder.notes if note not in made.notes]
    made.unreadable = list({str(error): error for error in made.unreadable}.values())
    return made


def _folders(
    path: Path, data: DataSettings, scratch: Path, unreadable: list[DataError]
) -> Iterator[CandleFolder]:
    """Yield the folder's candles; of several timeframes without a choice, each timeframe's."""

    def opened(timeframe: str) -> CandleFolder:
        return CandleFolder(
            path,
            scratch,
            symbols=data.chosen(()),
            exclude=data.exclude,
            timeframe=timeframe,
            columns=data.columns,
            unreadable=unreadable,
        )

    try:
        yield opened(data.timeframe)
    except SeveralTimeframes as several:
        for timeframe in several.timeframes:
            yield opened(timeframe)


def _check(folder: CandleFolder, symbol: str, data: DataSettings) -> SymbolCheck | None:
    parts = folder.read_as_is(symbol)
    if not parts:
        return None
    return check_symbol(
        symbol,
        folder.parts(symbol)[0].timeframe,
        parts,
        timeframe=folder.timeframe,
        calendar=data.calendar,
        columns=folder.columns,
    )
