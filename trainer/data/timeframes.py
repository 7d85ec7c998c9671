"""Timeframes: their names, their length, and what is guessed from a series. Owns nothing of files or holes.

A timeframe is a length of time (`30s`, `1m`, `4h`, `1d`, `1w`) or a kind of event bar (`tick2800`, `volume1000`,
`dollar1000000`, `events` where only irregularity is known). `timestamp` is the start of a bar of time, and the last trade of
an event bar.
"""

from __future__ import annotations

import re

import numpy as np

from trainer.errors import DataError

SECOND = 1_000_000_000  # nanoseconds
DAY = 86_400 * SECOND
EVENTS = "events"
_UNITS = {"w": 7 * DAY, "d": DAY, "h": 3600 * SECOND, "m": 60 * SECOND, "s": SECOND}  # longest first: 60m is named 1h
_TIME = re.compile(r"(\d+)\s*(s|sec|m|min|h|d|w)", re.IGNORECASE)
_EVENT = re.compile(r"(tick|vol|volume|dollar|range|renko)\d{0,15}|events", re.IGNORECASE)
_MOST_DIGITS = 10
_LONGEST = 10_000 * DAY  # sums of a time and a step stay within int64
_IN_NAME = re.compile(
    r"(?P<symbol>.+?)[_-](?P<timeframe>\d+(?:sec|s|min|m|h|d|w)|(?:tick|vol|volume|dollar|range|renko)\d+)(?:[_-].*)?", re.I
)


def step_of(timeframe: str) -> int:
    """Return the length of a bar in nanoseconds, 0 for event bars. Raises DataError for a name that is not a timeframe."""
    match = _TIME.fullmatch(timeframe.strip())
    if match and match[2] != "M":  # 1M is a month, which has no one length
        step = int(match[1][:_MOST_DIGITS]) * _UNITS[match[2][0].lower()]
        if 0 < step <= _LONGEST and len(match[1]) < _MOST_DIGITS:
            return step
    elif _EVENT.fullmatch(timeframe.strip()):
        return 0
    raise DataError(f"'{timeframe}' is not a timeframe", do="Write it as 30s, 1m, 4h, 1d, 1w, or tick2800 for event bars.")


def canonical(timeframe: str) -> str:
    """Return the one name of a timeframe: 60min -> 1h, 1H -> 1h, Tick2800 -> tick2800."""
    step = step_of(timeframe)
    return name_of(step) if step else timeframe.strip().lower()


def name_of(step: int) -> str:
    """Return the name of a step in nanoseconds: 60e9 -> 1m."""
    for unit, length in _UNITS.items():
        if step >= length and step % length == 0:
            return f"{step // length}{unit}"
    return EVENTS  # below a second, or uneven: no clock made these bars


def parse_name(stem: str) -> tuple[str, str]:
    """Return (symbol, timeframe) as a file's name tells them, '' for no timeframe: BTC-USD_1m_2021 -> ('BTC-USD', '1m')."""
    match = _IN_NAME.fullmatch(stem)
    if match and not match["timeframe"].endswith("M"):
        return match["symbol"], canonical(match["timeframe"])
    parts = stem.split("_")
    while len(parts) > 1 and re.fullmatch(r"[\d-]+", parts[-1]):  # years and dates at the end are no part of a symbol
        parts.pop()
    return "_".join(parts), ""


def commonest_step(timestamps: np.ndarray) -> str:
    """Return the timeframe whose step most neighbours of a sorted series keep, `events` where fewer than half keep one."""
    steps, counts = np.unique(np.diff(timestamps), return_counts=True)
    if not len(steps) or counts.max() * 2 < counts.sum() or steps[counts.argmax()] <= 0:
        return EVENTS
    return name_of(int(steps[counts.argmax()]))
