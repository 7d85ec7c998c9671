"""Entries of `data.columns` that name a side series: values that are published beside the candles, such as
sentiment or rates, and features of another symbol's bars. Standard library only.

`NAME lag TIME` takes the values of NAME.side.csv (or .parquet) as of their publication, `TIME` after the time
of their row; `NAME.COLUMN lag TIME` takes one column of several. `FEATURE of SYMBOL` takes a feature of that
symbol's bars, and `FEATURE of index` of the index of several, known when their bar ends. `... age TIME` sets
how old a value may be when it is used.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from trainer.base.errors import DataError, UsageError, nearest
from trainer.base.symbols import RULE, flaw, quoted, tidy
from trainer.base.text import some_of
from trainer.data.columns import INDEX
from trainer.data.feature_names import AT, named
from trainer.data.feature_table import TABLE
from trainer.data.timeframes import step_of

_ENTRY = re.compile(r"(?P<name>\S+) lag (?P<lag>\S+)(?: age (?P<age>\S+))?")
_CROSS = re.compile(r"(?P<feature>\S+) of (?P<symbol>.+?)(?: age (?P<age>\S+))?")
_FILE = re.compile(r"(?P<name>[^.]+)\.side(\.[^.]+)?\.(csv|csv\.gz|parquet|pq|feather|arrow)", re.IGNORECASE)
MOST_NAMED = 12  # symbols, in a line
_NOTHING = ("0", "0s", "0m", "0h", "0d")


@dataclass(frozen=True, kw_only=True)
class SideColumn:
    """A side series as a job, or a card, names it. Times in nanoseconds."""

    entry: str
    file: str = ""  # NAME of NAME.side.csv; '' for a feature of a symbol
    column: str = ""  # '' for the only one
    feature: str = ""  # '' for a file
    symbol: str = ""  # whose bars the feature is of, or INDEX; '' for a file
    lag: int = 0  # from the time of a row to its publication
    age: int = 0  # how long ago its time may be at most; 0: by the series itself

    @property
    def title(self) -> str:
        """Return what messages call it."""
        return f"side series {self.file}" if self.file else self.entry

    def is_in(self, file: str) -> bool:
        """Return whether a file, by its name, has values of this series."""
        return bool(self.file) and side_name(file) == self.file

    def lookback(self, timeframe: str) -> int:
        """Return how many bars of its symbol the feature looks back. Raises DataError for a timeframe from
        which its longer bars can't be made.
        """
        feature = named(self.feature)
        return 0 if feature is None else feature.lookback(timeframe)


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
        return _of_symbol(entry)
    file, _, column = match["name"].partition(".")
    if not file or match["name"].endswith("."):
        why = "`lag` follows NAME or NAME.COLUMN, of a file NAME.side.csv"
        raise _bad(entry, why, "Write it as fear_greed lag 1d.")
    age = _length(entry, match["age"]) if match["age"] else 0
    return SideColumn(entry=entry, file=file, column=column, lag=_length(entry, match["lag"]), age=age)


def split_sides(columns: Iterable[str]) -> tuple[tuple[str, ...], tuple[SideColumn, ...]]:
    """Return the columns of the candle files, and the side series."""
    inside, sides = [], []
    for entry in columns:
        side = side_column(entry)
        inside.append(entry) if side is None else sides.append(side)
    return tuple(inside), tuple(sides)


def symbols_beside(sides: Iterable[SideColumn], members: Iterable[str]) -> dict[str, str]:
    """Return the symbols whose bars side series read, by name, each with an entry that reads it; `members`:
    those of the index.
    """
    members, entries = tuple(members), dict[str, str]()
    for side in sides:
        for symbol in members if side.symbol == INDEX else filter(None, (side.symbol,)):
            entries.setdefault(symbol, side.entry)
    return dict(sorted(entries.items()))


def refuse_missing(beside: Mapping[str, str], there: Collection[str], where: str) -> None:
    """Raise DataError for a symbol of `symbols_beside` that is not among those at a place."""
    for symbol, entry in beside.items():
        if symbol not in there:
            do = nearest(symbol, there, closeness=0.8)
            do = do or "Bring its candles, too, or leave it out of data.columns."
            why = f"{entry} reads them; {where} holds {some_of(sorted(there), MOST_NAMED)}"
            raise DataError(f"there are no bars of {symbol}", why=why, do=do)


def reads_index(sides: Iterable[SideColumn]) -> bool:
    """Return whether any side series is of the index."""
    return any(side.symbol == INDEX for side in sides)


def features_beside(columns: Iterable[str]) -> tuple[str, ...]:
    """Return the features that columns are of other symbols' bars, whose versions a card has, too."""
    return tuple(dict.fromkeys(side.feature for side in split_sides(columns)[1] if side.feature))


def _of_symbol(entry: str) -> SideColumn | None:
    """Return the feature of another symbol's bars that an entry names; None for a column, such as `number of
    trades`.
    """
    match = _CROSS.fullmatch(entry.strip())
    if match is None:
        return None
    name, symbol = match["feature"], tidy(match["symbol"])
    feature = named(name)
    if feature is None:
        do = nearest(name.partition(AT)[0], TABLE, closeness=0.75) if "_" in name else ""
        if not do:
            return None
        raise _bad(entry, f"there is no feature {name}", do)
    if why := flaw(symbol):
        raise _bad(entry, f"{quoted(symbol)} is not a symbol: {why}", f"The rule: {RULE}.")
    if symbol == INDEX and not feature.feature.reads_closes:
        why = "an index has closes alone, no range and no volume"
        raise _bad(entry, why, "Name a feature of closes, such as log_return_60 or log_volatility_60.")
    age = _length(entry, match["age"]) if match["age"] else 0
    return SideColumn(entry=entry, feature=name, symbol=symbol, age=age)


def _length(entry: str, text: str) -> int:
    if text in _NOTHING:
        return 0
    try:
        if step := step_of(text):
            return step
    except DataError:
        pass
    raise _bad(entry, f"{text} is not a length of time", "Write it as 0s, 90m, 4h or 1d.")


def _bad(entry: str, why: str, do: str) -> UsageError:
    return UsageError(f"job key 'data.columns' has {quoted(entry)}", why=why, do=do)
