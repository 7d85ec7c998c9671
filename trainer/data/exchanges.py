"""Sessions of named exchanges, from exchange_calendars: hours, early closes, lunch breaks and holidays as they were.

`calendar` asks here for a job that names an exchange, such as XNYS; `calendar = "auto"` is its own inference. Times are
nanoseconds UTC. Shapes: N bars, S sessions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainer.data.timeframes import DAY
from trainer.errors import DataError

# Share of a series' bars that lie in trading hours, at least. All of New York's hours before and after trading leave 0.41; its
# local times read as UTC have 0.33 over a year.
FEWEST_INSIDE = 0.36


@dataclass(frozen=True, kw_only=True)
class Hours:
    """The sessions of an exchange, oldest first, (S,) int64 each; a break is empty if a session has none."""

    opens: np.ndarray
    closes: np.ndarray
    break_starts: np.ndarray
    break_ends: np.ndarray

    def traded(self, moments: np.ndarray) -> np.ndarray:
        """Return (N,) int64: how long the exchange was open before each moment, counted from the first session."""
        session = np.searchsorted(self.opens, moments, side="right") - 1  # the one that began last
        passed, broken = (
            np.clip(moments - begins[session], 0, (ends - begins)[session])
            for begins, ends in ((self.opens, self.closes), (self.break_starts, self.break_ends))
        )
        whole = self.closes - self.opens - (self.break_ends - self.break_starts)
        before = np.cumsum(whole) - whole
        return np.asarray(np.where(session >= 0, before[session] + passed - broken, 0))


def hours_of(exchange: str, first: int, last: int) -> Hours:
    """Return the sessions that a series from `first` to `last` may have bars in. Raises DataError if none are known."""
    import exchange_calendars  # late: half a second, and only series of a named exchange need it

    start, end = (np.datetime64(moment, "ns").astype("datetime64[D]") for moment in (first, last + DAY))
    try:
        known = exchange_calendars.get_calendar(exchange, start=str(start), end=str(end))
    # The library has errors of its own for a span without a session, and ValueErrors for one that it has no holidays of.
    except Exception as error:
        raise DataError(
            f"calendar {exchange} has no sessions for bars from {start} to {end}",
            why=str(error).split("\n")[0][:160],
            do="Set bars to fewer, calendar = auto, or install a newer exchange_calendars.",
        ) from error
    opens, closes = known.opens_nanos, known.closes_nanos
    has_break = known.break_starts_nanos > 0  # NaT is the smallest number
    return Hours(
        opens=opens,
        closes=closes,
        break_starts=np.where(has_break, known.break_starts_nanos, opens),
        break_ends=np.where(has_break, known.break_ends_nanos, opens),
    )


def exchange_holes(timestamps: np.ndarray, step: int, exchange: str) -> np.ndarray:
    """Return (N,) bool: True at t where the exchange was open between bar t-1 and bar t and no bar covers it.

    With bars of a day, and event bars (`step` 0), it is True if a whole session lies between. Raises DataError if too few
    bars lie in trading hours: their times are another zone's, or the exchange is another.
    """
    hours = hours_of(exchange, int(timestamps[0]), int(timestamps[-1]))
    is_hole = np.zeros(len(timestamps), dtype=bool)
    if not 0 < step < DAY:
        is_hole[1:] = np.diff(np.searchsorted(hours.closes, timestamps)) > 1
        return is_hole
    begun, ended = hours.traded(timestamps), hours.traded(timestamps + step)
    inside = float(np.mean(ended > begun))
    if inside < FEWEST_INSIDE:
        raise DataError(
            f"{inside:.0%} of the bars lie in the trading hours of {exchange}",
            why="times are read as UTC where a file names no zone, and a time is the start of its bar",
            do="Correct the times, name another exchange, or set calendar = auto.",
        )
    is_hole[1:] = begun[1:] > ended[:-1]
    return is_hole


def exchange_clock(timestamps: np.ndarray, exchange: str) -> np.ndarray:
    """Return what `calendar.session_clock` does; a day turns in the middle between a close and the next open."""
    hours = hours_of(exchange, int(timestamps[0]), int(timestamps[-1]))
    turns = hours.closes[:-1] + (hours.opens[1:] - hours.closes[:-1]) // 2
    session = np.searchsorted(turns, timestamps, side="right")
    margin = (DAY - int((hours.closes - hours.opens).max())) // 2  # so that bars before and after trading have a time, too
    since = np.clip(timestamps - hours.opens[session] + margin, 0, DAY - 1)
    return np.asarray(np.unique(session, return_inverse=True)[1] * DAY + since)
