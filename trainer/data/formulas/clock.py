"""Features of the time of a bar's start. UTC, but for `new_york_time`. N rows, as in `shared`."""

from __future__ import annotations

import math
from datetime import datetime, timezone
from functools import cache
from zoneinfo import ZoneInfo

import numpy as np
import torch

from trainer.data.formulas.shared import FeatureBars, angle, cos, sin
from trainer.data.rolling import change
from trainer.data.timeframes import DAY, SECOND

_HOUR = 3600 * SECOND
_NEW_YORK = ZoneInfo("America/New_York")
_SATURDAY = 2  # 1970-01-01 was a Thursday


def time_of_day_sin(bars: FeatureBars, span: int) -> np.ndarray:
    """Return the sine of the time of day."""
    return sin(bars.time_of_day)


def time_of_day_cos(bars: FeatureBars, span: int) -> np.ndarray:
    """Return the cosine of the time of day."""
    return cos(bars.time_of_day)


def time_of_week_sin(bars: FeatureBars, span: int) -> np.ndarray:
    """Return the sine of the time of the week."""
    return sin(bars.time_of_week)


def time_of_week_cos(bars: FeatureBars, span: int) -> np.ndarray:
    """Return the cosine of the time of the week."""
    return cos(bars.time_of_week)


def log_seconds_since_last_bar(bars: FeatureBars, span: int) -> np.ndarray:
    """Return ln(1 + seconds since the bar before)."""
    seconds_N = change(bars.timestamp, 1).astype(np.float64) / SECOND
    return torch.from_numpy(seconds_N).log1p_().numpy()


def new_york_time_sin(bars: FeatureBars, span: int) -> np.ndarray:
    """Return the sine of New York's time of day, with its daylight saving time."""
    return sin(angle(_in_new_york(bars.timestamp), DAY))


def new_york_time_cos(bars: FeatureBars, span: int) -> np.ndarray:
    """Return the cosine of New York's time of day, with its daylight saving time."""
    return cos(angle(_in_new_york(bars.timestamp), DAY))


def time_of_year_sin(bars: FeatureBars, span: int) -> np.ndarray:
    """Return the sine of the share of the year that has passed."""
    return sin(_part_of_year(bars.timestamp))


def time_of_year_cos(bars: FeatureBars, span: int) -> np.ndarray:
    """Return the cosine of the share of the year that has passed."""
    return cos(_part_of_year(bars.timestamp))


def turn_of_month(bars: FeatureBars, span: int) -> np.ndarray:
    """Return 1 on the last day of a month and the first three of the next, else 0."""
    days_N = _days(bars.timestamp)
    first_N = days_N.astype("datetime64[M]").astype("datetime64[D]")
    next_N = (days_N.astype("datetime64[M]") + np.timedelta64(1, "M")).astype("datetime64[D]")
    is_turn_N = (days_N - first_N < np.timedelta64(3, "D")) | (next_N - days_N == np.timedelta64(1, "D"))
    return np.asarray(is_turn_N.astype(np.float64))


def is_weekend(bars: FeatureBars, span: int) -> np.ndarray:
    """Return 1 on Saturday and Sunday, else 0."""
    day_N = bars.timestamp // DAY % 7
    return np.asarray(((day_N == _SATURDAY) | (day_N == _SATURDAY + 1)).astype(np.float64))


def _days(timestamp_N: np.ndarray) -> np.ndarray:
    return np.asarray(timestamp_N.astype("datetime64[ns]").astype("datetime64[D]"))


def _part_of_year(timestamp_N: np.ndarray) -> np.ndarray:
    """Return the share of the year that has passed as an angle (N,)."""
    times_N = timestamp_N.astype("datetime64[ns]")
    year_N = times_N.astype("datetime64[Y]")
    next_N = year_N + np.timedelta64(1, "Y")
    begin_N, end_N = (one.astype("datetime64[ns]") for one in (year_N, next_N))
    passed_N = (times_N - begin_N).astype(np.int64) / (end_N - begin_N).astype(np.int64)
    return np.asarray(passed_N * (2 * math.pi))


def _in_new_york(timestamp_N: np.ndarray) -> np.ndarray:
    """Return the nanoseconds of New York's clocks: their offset changes at full hours of UTC."""
    hours, places = np.unique(timestamp_N // _HOUR, return_inverse=True)
    offsets = np.array([_offset(int(hour)) for hour in hours], dtype=np.int64)
    return np.asarray(timestamp_N + offsets[places])


@cache
def _offset(hour: int) -> int:
    """Return New York's offset from UTC in nanoseconds in an hour since 1970."""
    offset = datetime.fromtimestamp(hour * 3600, timezone.utc).astimezone(_NEW_YORK).utcoffset()
    assert offset is not None
    return int(offset.total_seconds()) * SECOND


FORMULAS = {
    function.__name__: function
    for function in (
        *(time_of_day_sin, time_of_day_cos, time_of_week_sin, time_of_week_cos, log_seconds_since_last_bar),
        *(new_york_time_sin, new_york_time_cos, time_of_year_sin, time_of_year_cos),
        *(turn_of_month, is_weekend),
    )
}
