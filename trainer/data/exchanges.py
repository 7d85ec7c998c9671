"""Sessions of named exchanges, from exchange_calendars: hours, early closes, lunch breaks and holidays as
they were.

Used by `calendar` for a job that names an exchange, such as XNYS. Times are nanoseconds UTC. Shapes: N bars,
S sessions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainer.base.errors import DataError
from trainer.data.timeframes import DAY

# Least share of a series' bars in trading hours. With all of New York's extended hours it is 0.41; with its
# local times read as UTC, 0.33 over a year.
FEWEST_INSIDE = 0.36


@dataclass(frozen=True, kw_only=True)
class Hours:
    """The sessions of an exchange, oldest first, (S,) int64 each; a session without a break has an
    empty one.
    """

    opens: np.ndarray
    closes: np.ndarray
    break_starts: np.ndarray
    break_ends: np.ndarray

    def traded(self, moments: np.ndarray) -> np.ndarray:
        """Return (N,) int64: ns for which the exchange was open before each moment, from the first session
        on.
        """
        session = np.searchsorted(self.opens, moments, side="right") - 1  # the last one that had begun
        passed, broken = (
            np.clip(moments - begins[session], 0, (ends - begins)[session])
            for begins, ends in ((self.opens, self.closes), (self.break_starts, self.break_ends))
        )
        whole = self.closes - self.opens - (self.break_ends - self.break_starts)
        before = np.cumsum(whole) - whole
        return np.asarray(np.where(session >= 0, before[session] + passed - broken, 0))


def hours_of(exchange: str, first: int, last: int) -> Hours:
    """Return the sessions in which a series from `first` to `last` may have bars. Raises DataError if none
    are known.
    """
    import exchange_calendars  # late: half a second, and only series of a named exchange need it

    start, end = (np.datetime64(moment, "ns").astype("datetime64[D]") for moment in (first, last + DAY))
    try:
        known = exchange_calendars.get_calendar(exchange, start=str(start), end=str(end))
    # The library's own errors for a span without sessions, and ValueErrors for one without known holidays.
    except Exception as error:
        raise DataError(
            f"calendar {exchange} has no sessions for bars from {start} to {end}",
            why=str(error).split("\n")[0][:160],
            do="Set data.bars lower, data.calendar = auto, or install a newer exchange_calendars.",
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
    """Return (N,) bool: True at t if the exchange was open between bar t-1 and bar t without a bar.

    For bars of a day, and event bars (`step` 0): True if a whole session is between them. Raises DataError if
    too few bars are in trading hours: their times are of another zone, or of another exchange.
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
            why="times are read as UTC if a file names no zone, and a time is the start of its bar",
            do="Correct the times, name another exchange, or set data.calendar = auto.",
        )
    is_hole[1:] = begun[1:] > ended[:-1]
    return is_hole


def exchange_clock(timestamps: np.ndarray, exchange: str) -> np.ndarray:
    """Return the session clock as `calendar.session_clock` does; a day turns midway between a close and the
    next open.
    """
    hours = hours_of(exchange, int(timestamps[0]), int(timestamps[-1]))
    turns = hours.closes[:-1] + (hours.opens[1:] - hours.closes[:-1]) // 2
    session = np.searchsorted(turns, timestamps, side="right")
    # With a margin, so that bars of extended hours have a time, too.
    margin = (DAY - int((hours.closes - hours.opens).max())) // 2
    since = np.clip(timestamps - hours.opens[session] + margin, 0, DAY - 1)
    return np.asarray(np.unique(session, return_inverse=True)[1] * DAY + since)
