"""Steps between bars: infer the timeframe, and resample bars to longer ones.

A longer bar begins at a multiple of its length since 1970 (weeks on Mondays) in UTC. It is made of the bars
that exist in it; without any, it is missing too. The first and the last are dropped if the series does not
cover them, so that no bar covers only a part of its time, in training or in a prediction.
"""

from __future__ import annotations

import numpy as np

from trainer.data.timeframes import DAY, EVENTS, name_of, step_of

_MONDAY = 4 * DAY  # 1970-01-05
_WEEK = 7 * DAY


def commonest_step(timestamps: np.ndarray) -> str:
    """Return the timeframe of the most frequent step of a sorted series; `events` if fewer than half of the
    steps have it.
    """
    steps, counts = np.unique(np.diff(timestamps), return_counts=True)
    if not len(steps) or counts.max() * 2 < counts.sum() or steps[counts.argmax()] <= 0:
        return EVENTS
    return name_of(int(steps[counts.argmax()]))


def resample(
    timestamp_N: np.ndarray, values_CN: np.ndarray, base: str, timeframe: str
) -> tuple[np.ndarray, np.ndarray]:
    """Return the times (M,) and values (C, M) of longer bars; rows are open, high, low, close, volume and
    further columns.

    Of a further column, a longer bar has the last value.
    """
    short, long = step_of(base), step_of(timeframe)
    origin = _MONDAY if long % _WEEK == 0 else 0
    bins_N = (timestamp_N - origin) // long
    first_M = np.flatnonzero(np.diff(bins_N, prepend=bins_N[0] - 1))
    starts_M = bins_N[first_M] * long + origin
    last_M = np.append(first_M[1:], len(bins_N)) - 1
    values_CM = values_CN[:, last_M].copy()
    values_CM[0] = values_CN[0, first_M]
    values_CM[1] = np.maximum.reduceat(values_CN[1], first_M)
    values_CM[2] = np.minimum.reduceat(values_CN[2], first_M)
    values_CM[4] = np.add.reduceat(values_CN[4], first_M)
    begin = int(timestamp_N[0] != starts_M[0])
    end = len(starts_M) - int(timestamp_N[-1] + short < starts_M[-1] + long)
    return np.ascontiguousarray(starts_M[begin:end]), np.ascontiguousarray(values_CM[:, begin:end])
