"""Calendars: find the holes in a series of bars. Uses timestamps only; `trainer/plan` decides the consequences of a hole.

`24x7` (coins): any missing bar is a hole. `sessions` (equities, futures): a bar missing inside a day of the exchange is one,
and a break of more than five days; nights, weekends and holidays are none. `events` (tick bars): only a break of more than
five days. The name of an exchange (`XNYS`): its real sessions, hours and holidays (`exchanges`).

Sessions are counted by the same rule: the day of the exchange, the day of the clock for coins, a bar where it is a day or
more.

Where no exchange is named, its day is read from the series itself, week by week, so that summer time needs no table: within a
week it turns at the middle of the longest stretch of the clock in which no bar falls. Weeks begin on Saturday, when clocks
have not yet changed (they do on Sundays) and no exchange trades. A stretch of the clock that never holds a bar (a lunch
break) is no part of the day.
"""

from __future__ import annotations

import numpy as np

from trainer.data.exchanges import exchange_clock, exchange_holes
from trainer.data.settings import EXCHANGES
from trainer.data.timeframes import DAY, SECOND, step_of

MINUTE = 60 * SECOND
LONGEST_BREAK = 5 * DAY  # Thursday to Tuesday over Easter or Christmas is exactly this
_WEEK = 7 * DAY
_FIRST_SATURDAY = 2 * DAY  # 1970-01-03
_DAYS_TO_KNOW_A_LUNCH = 5
_SMALLEST_SESSION = 0.2  # of the median session's event bars: a Sunday evening's few belong to Monday


def infer_calendar(timestamps: np.ndarray, timeframe: str) -> str:
    """Guess the calendar of a series: event bars by timeframe, coins by bars on Saturdays (UTC), else sessions.

    A series too short to hold a whole Saturday counts as 24x7, the strictest, when bars fill more than half of its span.
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
    """Return a (N,) bool array: True at t where a hole lies between bar t-1 and bar t. `calendar` is not 'auto'.

    Raises DataError for an exchange that the bars are not of.
    """
    if calendar in EXCHANGES and step_of(timeframe) <= DAY:
        return exchange_holes(timestamps, step_of(timeframe), calendar)
    is_hole = np.zeros(len(timestamps), dtype=bool)
    steps = np.diff(timestamps)
    step = step_of(timeframe)
    is_hole[1:] = steps > LONGEST_BREAK if step < LONGEST_BREAK else steps > 2 * step  # weekly bars: one may fall on a holiday
    if calendar == "24x7":
        is_hole[1:] = steps > step
    elif calendar == "sessions" and 0 < step < DAY:
        gaps = np.flatnonzero((steps > step) & ~is_hole[1:]) + 1
        is_hole[gaps[_inside_a_day(timestamps, gaps, step)]] = True
    return is_hole


def session_clock(timestamps: np.ndarray, timeframe: str, calendar: str) -> np.ndarray:
    """Return (N,) int64, ascending: DAY x the session's number (0, 1, 2 ... without gaps) + ns since its day turned.

    So `clock // DAY` numbers the sessions, and `clock + DAY` is the same time in the next one, whatever lies between.
    `calendar` is not 'auto'.
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
    _, session, bars = np.unique(turned // DAY, return_inverse=True, return_counts=True)
    since = turned % DAY
    if not step:
        small = bars < _SMALLEST_SESSION * np.median(bars)
        small[-1] = False
        since = np.where(small[session], 0, since)
        session = (np.cumsum(~small) - ~small)[session]
    return np.asarray(session * DAY + since)


def _usual_turn(turns: np.ndarray) -> int:
    """Return the turn with the least distance to all others, round the clock: one week's event bars are too sparse."""
    apart = np.abs(turns[:, None] - turns[None, :])
    return int(turns[np.minimum(apart, DAY - apart).sum(1).argmin()])


def _inside_a_day(timestamps: np.ndarray, gaps: np.ndarray, step: int) -> np.ndarray:
    """Return for each gap (between bars t-1 and t) whether it misses a bar of the exchange's day."""
    before, after = timestamps[gaps - 1], timestamps[gaps]
    turn = _day_turns(timestamps, step)[_week_of(before) - _week_of(timestamps[0])]
    same_day = (before - turn) // DAY == (after - turn) // DAY
    slots = -(-DAY // step)
    trades = np.zeros(slots, dtype=bool)
    trades[(timestamps % DAY) // step] = True
    if len(np.unique(timestamps // DAY)) < _DAYS_TO_KNOW_A_LUNCH:
        trades[:] = True  # too few days to tell a lunch break from missing bars: the strict reading
    # How many trading slots lie before a moment, counted through two days since a gap may pass midnight.
    passed = np.concatenate([[0], np.cumsum(np.tile(trades, 2))])
    from_slot = (before % DAY) // step + 1
    to_slot = from_slot + (after - before) // step - 1
    missing = passed[np.minimum(to_slot, 2 * slots)] - passed[np.minimum(from_slot, 2 * slots)]
    return np.asarray(same_day & (missing > 0))


def _week_of(timestamps: np.ndarray | np.integer) -> np.ndarray:
    return np.asarray((timestamps - _FIRST_SATURDAY) // _WEEK)


def _day_turns(timestamps: np.ndarray, step: int) -> np.ndarray:
    """Return for each week of the series the time of day (ns after midnight UTC) at which its exchange's day turns."""
    step = max(step, MINUTE)  # bars of seconds need no finer clock to tell day from night
    slots = -(-DAY // step)
    week = _week_of(timestamps) - _week_of(timestamps[0])
    occupied = np.zeros((int(week[-1]) + 1, slots), dtype=bool)
    occupied[week, (timestamps % DAY) // step] = True
    slot = np.arange(2 * slots)  # twice round the clock, so that a night over midnight is one stretch
    round_twice = np.tile(occupied, (1, 2))
    last_bar = np.maximum.accumulate(np.where(round_twice, slot, -1), axis=1)
    empty_run = np.where(last_bar >= 0, slot - last_bar, 0)  # empty slots up to here, since the last bar
    end = empty_run.argmax(axis=1)
    middle = end - empty_run[np.arange(len(end)), end] // 2
    return np.asarray((middle % slots) * step)
