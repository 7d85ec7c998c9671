"""Entries of `data.columns` that name a side series: values that are published beside the candles, such as
sentiment or rates. Standard library only.

`NAME lag TIME` takes the values of NAME.side.csv (or .parquet) as of their publication, `TIME` after the time
of their row; `NAME.COLUMN lag TIME` takes one column of several. `... age TIME` sets how old a value may be
when it is used.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from trainer.base.errors import DataError, UsageError
from trainer.base.symbols import quoted
from trainer.data.timeframes import step_of

_ENTRY = re.compile(r"(?P<name>\S+) lag (?P<lag>\S+)(?: age (?P<age>\S+))?")
_FILE = re.compile(r"(?P<name>[^.]+)\.side(\.[^.]+)?\.(csv|csv\.gz|parquet|pq|feather|arrow)", re.IGNORECASE)
_NOTHING = ("0", "0s", "0m", "0h", "0d")


@dataclass(frozen=True, kw_only=True)
class SideColumn:
    """A side series as a job, or a card, names it. Times in nanoseconds."""

    entry: str
    file: str  # NAME of NAME.side.csv
    column: str  # '' for the only one
    lag: int  # from the time of a row to its publication
    age: int  # how long ago its time may be at most; 0: by the series itself

    def is_in(self, file: str) -> bool:
        """Return whether a file, by its name, has values of this series."""
        return side_name(file) == self.file


def side_name(file: str) -> str:
    """Return the NAME of a side file, by its file name; '' for any other file."""
    match = _FILE.fullmatch(file)
    return match["name"] if match else ""


def side_column(entry: str) -> SideColumn | None:
    """Return the side series of an entry, None for a column of the candles. Raises UsageError for a length of
    time that is none.
    """
    match = _ENTRY.fullmatch(entry.strip())
    if match is None:
        return None
    file, _, column = match["name"].partition(".")
    if not file or match["name"].endswith("."):
        why = "before `lag` stands NAME, or NAME.COLUMN, of NAME.side.csv"
        raise _bad(entry, why, "Such as fear_greed lag 1d.")
    age = _length(entry, match["age"]) if match["age"] else 0
    return SideColumn(entry=entry, file=file, column=column, lag=_length(entry, match["lag"]), age=age)


def split_sides(columns: Iterable[str]) -> tuple[tuple[str, ...], tuple[SideColumn, ...]]:
    """Return the columns of the candle files, and the side series."""
    inside, sides = [], []
    for entry in columns:
        side = side_column(entry)
        inside.append(entry) if side is None else sides.append(side)
    return tuple(inside), tuple(sides)


def _length(entry: str, text: str) -> int:
    if text in _NOTHING:
        return 0
    try:
        if step := step_of(text):
            return step
    except DataError:
        pass
    raise _bad(entry, f"{text} is no length of time", "Write it as 0s, 90m, 4h or 1d.")


def _bad(entry: str, why: str, do: str) -> UsageError:
    return UsageError(f"job key 'data.columns' has {quoted(entry)}", why=why, do=do)
