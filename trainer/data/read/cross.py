"""Side series made of candles: features of another symbol's bars, and of the index of several symbols.

The index has a bar at each instant at which any member has one; its log return there is the mean of those of
all members that have both this bar and one at the instant before. Without such a member the instant has no
bar. Its bars have closes alone: the sum of these returns, from 0 on. An index bar depends on no later bar;
its level, not its returns, on where the members begin, so that its features may differ in the last digits.

A feature is known when its bar ends. One symbol is in memory at a time. Shapes: N bars, D instants.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from trainer.base.errors import DataError
from trainer.base.text import counted
from trainer.data.columns import INDEX
from trainer.data.feature_names import in_order
from trainer.data.read.candles import Candles, bars_sha256, merged
from trainer.data.read.side import SideSeries
from trainer.data.side_names import SideColumn
from trainer.data.timeframes import step_of

_NEVER = np.iinfo(np.int64).min


class IndexBars:
    """The bars of an index, of members that are added one by one."""

    def __init__(self) -> None:
        self._instants = np.empty(0, dtype=np.int64)  # (D,) ascending
        # (D,): the latest bar before an instant that a member with a bar there has; the sum of the log
        # returns from it, and their number
        self._before = np.empty(0, dtype=np.int64)
        self._total, self._count = np.empty(0), np.empty(0, dtype=np.int64)
        self._marks, self._timeframe = hashlib.sha256(), ""

    def add(self, candles: Candles) -> None:
        """Add a member's bars."""
        self._timeframe = candles.timeframe
        self._make_room(candles.timestamp)
        self._marks.update(f"{candles.symbol} {bars_sha256(candles)}".encode())
        places_N, before_N = np.searchsorted(self._instants, candles.timestamp[1:]), candles.timestamp[:-1]
        returns_N = np.diff(np.log(candles.close))
        newer_N = before_N > self._before[places_N]
        newer_D = places_N[newer_N]
        self._before[newer_D], self._total[newer_D], self._count[newer_D] = before_N[newer_N], 0.0, 0
        same_N = before_N == self._before[places_N]
        self._total[places_N[same_N]] += returns_N[same_N]
        self._count[places_N[same_N]] += 1

    def mark(self) -> str:
        """Return the hash of all members' bars, in their order."""
        return self._marks.hexdigest()

    def candles(self) -> Candles:
        """Return the index's bars."""
        kept = 1 + np.flatnonzero(self._before[1:] == self._instants[:-1])
        close_D = np.exp(np.cumsum(self._total[kept] / self._count[kept]))
        return Candles(
            symbol="the index",
            timeframe=self._timeframe,
            timestamp=self._instants[kept],
            open=close_D,
            high=close_D,
            low=close_D,
            close=close_D,
            volume=np.zeros(len(kept)),
        )

    def _make_room(self, timestamp: np.ndarray) -> None:
        instants = merged(self._instants, timestamp)
        if len(instants) == len(self._instants):
            return
        old = np.searchsorted(instants, self._instants)
        for name, empty in (("_before", _NEVER), ("_total", 0.0), ("_count", 0)):
            values = getattr(self, name)
            wider = np.full(len(instants), empty, dtype=values.dtype)
            wider[old] = values
            setattr(self, name, wider)
        self._instants = instants


def read_cross(
    columns: Sequence[SideColumn],
    *,
    members: Sequence[str],
    read: Callable[[str], Candles],
) -> dict[str, SideSeries]:
    """Return the side series of features by entry. `read` returns a symbol's bars, `members` are those of the
    index.

    Raises DataError as `read` does, and for a feature that no bar has.
    """
    made = dict[str, SideSeries]()
    for symbol in dict.fromkeys(column.symbol for column in columns):
        its = [column for column in columns if column.symbol == symbol]
        if symbol == INDEX:
            index = IndexBars()
            for member in members:
                index.add(read(member))
            candles, mark = index.candles(), index.mark()
        else:
            candles = read(symbol)
            mark = bars_sha256(candles)
        made |= {one.column.entry: one for one in _series(its, candles, mark)}
    return made


def _series(columns: Sequence[SideColumn], candles: Candles, mark: str) -> list[SideSeries]:
    from trainer.data.features import compute_inputs  # late: torch, which other data checks do without

    features = in_order(column.feature for column in columns)
    rows_NF = compute_inputs(candles, features=features).numpy()
    series = []
    for column in columns:
        begin = column.lookback(candles.timeframe)
        if begin >= len(candles):
            what = f"{column.entry} has no value"
            why = f"{candles.symbol} has {counted(len(candles), 'bar')}, and the feature looks back {begin}"
            raise DataError(what, why=why, do="Bring more bars of it, or name one that looks back less.")
        series.append(
            SideSeries(
                column=replace(column, lag=step_of(candles.timeframe)),
                timestamp=candles.timestamp[begin:],
                begins=candles.timestamp[: len(candles) - begin],
                values=rows_NF[begin:, features.index(column.feature)].copy(),
                mark=mark,
            )
        )
    return series
