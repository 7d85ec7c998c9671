"""Labels of volatility: the log of the root of the sum of squared log returns, from bar t to the same time of
day `horizon_sessions` sessions later, including the nights.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trainer.data.read.candles import Candles
from trainer.data.timeframes import DAY
from trainer.targets.bars import Labels, flawless, squared_returns, sums_over
from trainer.targets.volatility import Volatility

flaw = flawless


def label(target: Volatility, candles: Candles, clock: np.ndarray) -> Labels:
    """Return the labels; NaN if the series ends before, or if the close does not move."""
    bars = np.arange(len(clock), dtype=np.int64)
    then = clock + target.horizon_sessions * DAY
    # A label is known once there is a bar at or after the horizon's end.
    ends = np.searchsorted(clock, then, side="right") - 1
    ends = np.where((then <= clock[-1]) & (ends > bars), ends, -1)
    known = np.flatnonzero(ends >= 0)
    labels = np.full((len(bars), 1), np.nan, dtype=np.float32)
    labels[known, 0] = log_root(sums_over(squared_returns(candles.close), known + 1, ends[known] - known))
    # If the bar at the label's very end is missing, the hole is before the next bar.
    whole = clock[ends] == then
    return Labels(values_TK=labels, ends_T=ends, unbroken_T=ends + ~whole)


def trailing(close: np.ndarray, clock: np.ndarray, sessions: int) -> np.ndarray:
    """Return the log realized volatility (T,) float64 over the `sessions` sessions that end at each bar.

    NaN if the series does not reach so far back, or if the close did not move. Bar t uses bars up to t.
    """
    begins = np.searchsorted(clock, clock - sessions * DAY, side="right") - 1
    known = np.flatnonzero(begins >= 0)
    logs = np.full(len(clock), np.nan)
    logs[known] = log_root(sums_over(squared_returns(close), begins[known] + 1, known - begins[known]))
    return logs


def log_root(sums: np.ndarray) -> np.ndarray:
    """Return the log of the root of each sum; NaN if the sum is zero."""
    with np.errstate(divide="ignore"):
        logs = 0.5 * np.log(sums)
    return np.where(np.isfinite(logs), logs, np.nan)


def fit(target: Volatility, labels_NK: np.ndarray) -> dict[str, Any]:
    """Return the mean and deviation of the training labels."""
    seen = labels_NK[:, 0].astype(np.float64)
    return {"label_mean": float(seen.mean()), "label_std": float(seen.std()) or 1.0}


def scale(target: Volatility, labels_NK: np.ndarray, fitted: dict[str, Any]) -> np.ndarray:
    """Return the scaled labels (N, 1) float64, on which the network is trained."""
    return np.asarray((labels_NK.astype(np.float64) - fitted["label_mean"]) / fitted["label_std"])
