"""Timeframes: their names and lengths. Standard library only.

A timeframe is a length of time (`30s`, `1m`, `4h`, `1d`, `1w`) or a kind of event bar (`tick2800`,
`volume1000`, `dollar1000000`, or `events` if only irregularity is known). `timestamp` is the start of a time
bar, and the last trade of an event bar.
"""

from __future__ import annotations

import re

from trainer.base.errors import DataError

SECOND = 1_000_000_000  # nanoseconds
DAY = 86_400 * SECOND
EVENTS = "events"
# Longest first: 60m is named 1h.
UNITS = {"w": 7 * DAY, "d": DAY, "h": 3600 * SECOND, "m": 60 * SECOND, "s": SECOND}
_TIME = re.compile(r"(\d+)\s*(s|sec|m|min|h|d|w)", re.IGNORECASE)
_EVENT = re.compile(r"(tick|vol|volume|dollar|range|renko)\d{0,15}|events", re.IGNORECASE)
_MOST_DIGITS = 10
_LONGEST = 10_000 * DAY  # a time plus a step stays within int64


def step_of(timeframe: str) -> int:
    """Return the length of a bar in nanoseconds, 0 for event bars. Raises DataError for a name that is not a
    timeframe.
    """
    match = _TIME.fullmatch(timeframe.strip())
    if match and match[2] != "M":  # 1M is a month, whose length varies
        step = int(match[1][:_MOST_DIGITS]) * UNITS[match[2][0].lower()]
        if 0 < step <= _LONGEST and len(match[1]) < _MOST_DIGITS:
            return step
    elif _EVENT.fullmatch(timeframe.strip()):
        return 0
    raise DataError(
        f"'{timeframe}' is not a timeframe", do="Write it as 30s, 1m, 4h, 1d, 1w, or tick2800 for event bars."
    )


def origin_of(step: int) -> int:
    """Return a time at which bars of this length begin, in ns: those of weeks on Mondays."""
    return 4 * DAY if step % (7 * DAY) == 0 else 0  # 1970-01-05


def bar_begin(time: int, step: int) -> int:
    """Return the begin of the bar of this length that a time is in, both in ns."""
    origin = origin_of(step)
    return (time - origin) // step * step + origin


def canonical(timeframe: str) -> str:
    """Return the canonical name of a timeframe: 60min -> 1h, 1H -> 1h, Tick2800 -> tick2800."""
    step = step_of(timeframe)
    return name_of(step) if step else timeframe.strip().lower()


def name_of(step: int) -> str:
    """Return the timeframe of a step in nanoseconds: 60e9 -> 1m."""
    for unit, length in UNITS.items():
        if step >= length and step % length == 0:
            return f"{step // length}{unit}"
    return EVENTS  # below a second, or no multiple of one


def can_resample(base: str, timeframe: str) -> bool:
    """Return whether bars of `base` can be resampled to `timeframe`."""
    short, long = step_of(base), step_of(timeframe)
    return 0 < short < long and long % short == 0
