"""Calendars: find the holes in a series of bars. Uses timestamps only; `trainer/bars` decides the
consequences of a hole.

- `24x7` (coins): any missing bar is a hole.
- `sessions` (equities, futures): a bar missing inside the exchange's day, or a break of more than five days;
  nights, weekends and holidays are not holes.
- `events` (tick bars): only a break of more than five days.
- the name of an exchange (`XNYS`): by its real sessions, hours and holidays (`exchanges`).

A session is the exchange's day, for coins the UTC day, and one bar if bars are a day or longer.

If no exchange is named, its day is inferred from the series, week by week, so that daylight saving needs no
table: within a week the day turns at the middle of the longest time of day without bars; if there is none
(currencies), at that of the week's first bar. Weeks begin on Saturday, when no exchange trades and clocks
have not yet changed (they do on Sundays). A time of day that never has a bar (a lunch break) is not part of
the day.
"""

from __future__ import annotations

import numpy as np

from trainer.data.exchanges import exchange_clock, exchange_holes
from trainer.data.table import EXCHANGES
from trainer.data.timeframes import DAY, SECOND, step_of

MINUTE = 60 * SECOND
LONGEST_BREAK = 5 * DAY  # Thursday to Tuesday over Easter or Christmas is exactly this
_WEEK = 7 * DAY
_FIRST_SATURDAY = 2 * DAY  # 1970-01-03
_DAYS_TO_KNOW_A_LUNCH = 5
# Share of the median session's event bars; fewer, as on a Sunday evening, belong to the next session.
_SMALLEST_SESSION = 0.2


def infer_calendar(timestamps: np.ndarray, timeframe: str) -> str:
    """Return the calendar of a series: events by its timeframe, 24x7 if bars fill half of any Saturday (UTC),
    else sessions.

    A series too short to include a whole Saturday counts as 24x7, the strictest, if bars fill more than half
    of its span.
    """
    step = step_of(timeframe)
    if not step:
        return "events"
    if len(timestamps) < 2:
        return "24x7"
    in_week = (timestamps - _FIRST_SATURDAY) % _WEEK
    saturdays = (timestamps[in_week < DAY] - _FIRST_SATURDAY) // _WEEK
    if len(saturdays) and np.unique(saturdays, return_counts=True)[1].max() * min(step, DAY) * 2 >= DAY:
        return "24x7"
    first, last = int(timestamps[0]), int(timestamps[-1])
    next_saturday = first + (-(first - _FIRST_SATURDAY)) % _WEEK
    holds_saturday = next_saturday + DAY <= last
    covered = len(timestamps) * step / (last - first + step)
    return "24x7" if covered > 0.5 and not holds_saturday else "sessions"


def holes(timestamps: np.ndarray, timeframe: str, calendar: str) -> np.ndarray:
    """Return (N,) bool: True at t if there is a hole between bar t-1 and bar t. `calendar` is not 'auto'.

    Raises DataError if the bars do not fit the named exchange.
    """
    if calendar in EXCHANGES and step_of(timeframe) <= DAY:
        return exchange_holes(timestamps, step_of(timeframe), calendar)
    is_hole = np.zeros(len(timestamps), dtype=bool)
    steps = np.diff(timestamps)
    step = step_of(timeframe)
    # Of weekly bars one may be missing for a holiday.
    is_hole[1:] = steps > (LONGEST_BREAK if step < LONGEST_BREAK else 2 * step)
    if calendar == "24x7":
        is_hole[1:] = steps > step
    elif calendar == "sessions" and 0 < step < DAY:
        gaps = np.flatnonzero((steps > step) & ~is_hole[1:]) + 1
        is_hole[gaps[_inside_a_day(timestamps, gaps, step)]] = True
    return is_hole


def session_clock(timestamps: np.ndarray, timeframe: str, calendar: str) -> np.ndarray:
    """Return (N,) int64, ascending: DAY x the session's number (0, 1, 2 ... without gaps) + ns since its day
    turned.

    So `clock // DAY` is the number of the session, and `clock + DAY` the same time in the next session, even
    after a weekend. `calendar` is not 'auto'.
    """
    step = step_of(timeframe)
    if step >= DAY:
        return np.arange(len(timestamps), dtype=np.int64) * DAY
    if calendar in EXCHANGES:
        return exchange_clock(timestamps, calendar)
    if calendar == "24x7":
        turned = timestamps
    elif step:
        turned = timestamps - _day_turns(timestamps, step)[_week_of(timestamps) - _week_of(timestamps[0])]
    else:
        turned = timestamps - _usual_turn(_day_turns(timestamps, MINUTE))
    session, bars = _numbered(turned // DAY)
    since = turned % DAY
    if not step:
        small = bars < _SMALLEST_SESSION * np.median(bars)
        small[-1] = False
        since = np.where(small[session], 0, since)
        session = (np.cumsum(~small) - ~small)[session]
    return np.asarray(session * DAY + since)


def _numbered(days: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the number (N,) of each bar's day among those with bars, and how many bars each has."""
    steps = np.diff(days, prepend=days[:1])
    if (steps < 0).any():
        _, number, bars = np.unique(days, return_inverse=True, return_counts=True)
        return number, bars
    number = np.cumsum(steps > 0)
    return number, np.bincount(number)


def _usual_turn(turns: np.ndarray) -> int:
    """Return the turn of day (ns) with the least circular distance to all weeks' turns: one week has too few
    event bars.
    """
    apart = np.abs(turns[:, None] - turns[None, :])
    return int(turns[np.minimum(apart, DAY - apart).sum(1).argmin()])


def _inside_a_day(timestamps: np.ndarray, gaps: np.ndarray, step: int) -> np.ndarray:
    """Return for each gap (between bars t-1 and t) whether a bar of the exchange's day is missing in it."""
    before, after = timestamps[gaps - 1], timestamps[gaps]
    turn = _day_turns(timestamps, step)[_week_of(before) - _week_of(timestamps[0])]
    same_day = (before - turn) // DAY == (after - turn) // DAY
    slots = -(-DAY // step)
    trades = np.zeros(slots, dtype=bool)
    trades[(timestamps % DAY) // step] = True
    if len(np.unique(timestamps // DAY)) < _DAYS_TO_KNOW_A_LUNCH:
        trades[:] = True  # too few days to tell a lunch break from missing bars: the strict reading
    # Trading slots before each moment, counted over two days since a gap may pass midnight.
    passed = np.concatenate([[0], np.cumsum(np.tile(trades, 2))])
    from_slot = (before % DAY) // step + 1
    to_slot = from_slot + (after - before) // step - 1
    missing = passed[np.minimum(to_slot, 2 * slots)] - passed[np.minimum(from_slot, 2 * slots)]
    return np.asarray(same_day & (missing > 0))


def _week_of(timestamps: np.ndarray | np.integer) -> np.ndarray:
    return np.asarray((timestamps - _FIRST_SATURDAY) // _WEEK)


def _day_turns(timestamps: np.ndarray, step: int) -> np.ndarray:
    """Return for each week of the series the time of day (ns after midnight UTC) at which its exchange's day
    turns.
    """
    step = max(step, MINUTE)  # finer slots are not needed to tell day from night
    slots = -(-DAY // step)
    week = _week_of(timestamps) - _week_of(timestamps[0])
    occupied = np.zeros((int(week[-1]) + 1, slots), dtype=bool)
    occupied[week, (timestamps % DAY) // step] = True
    slot = np.arange(2 * slots)  # two days, so that a night over midnight is one run
    two_days = np.tile(occupied, (1, 2))
    last_bar = np.maximum.accumulate(np.where(two_days, slot, -1), axis=1)
    empty_run = np.where(last_bar >= 0, slot - last_bar, 0)  # empty slots up to here, since the last bar
    end = empty_run.argmax(axis=1)
    longest = empty_run[np.arange(len(end)), end]
    first_bars = timestamps[np.searchsorted(week, np.arange(len(end)))]
    opens = (first_bars % DAY) // step
    opens[0] = opens[min(1, len(end) - 1)]  # the series may begin within its first week
    return np.asarray(np.where(longest > 0, (end - longest // 2) % slots, opens) * step)
