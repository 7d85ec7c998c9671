"""Features of version 1.0 of prices and volume: returns, levels, the shape of a bar, oscillators and flows.

N rows, aligned at their end, as in `shared`.
"""

from __future__ import annotations

import math

import numpy as np

from trainer.data.formulas.shared import SMALLEST_MOVE, FeatureBars, log, ratio
from trainer.data.rolling import change, lag, last


def log_return(bars: FeatureBars, span: int) -> np.ndarray:
    """Return ln(C_t / C_(t-n))."""
    return change(bars.close, span)


def momentum(bars: FeatureBars, span: int) -> np.ndarray:
    """Return the log return over a span, divided by the volatility of that span."""
    _, deviation_N = bars.return_moments[span]
    whole_N = (deviation_N + SMALLEST_MOVE) * math.sqrt(span)
    return last(change(bars.close, span), len(whole_N)) / whole_N


def log_volatility(bars: FeatureBars, span: int) -> np.ndarray:
    """Return the log of the deviation of the last n returns."""
    return log(bars.return_moments[span][1] + SMALLEST_MOVE)


def price_zscore(bars: FeatureBars, span: int) -> np.ndarray:
    """Return how many deviations the log close is above its mean of n bars."""
    mean_N, deviation_N = bars.close_moments[span]
    return np.asarray((last(bars.close, len(mean_N)) - mean_N) / (deviation_N + SMALLEST_MOVE))


def volume_zscore(bars: FeatureBars, span: int) -> np.ndarray:
    """Return how many deviations the volume is above its mean of n bars; 0 if it does not vary."""
    mean_N, deviation_N = bars.volume_moments[span]
    return ratio(last(bars.volume, len(mean_N)) - mean_N, deviation_N, smallest_N=1e-9 * mean_N)


def bar_range(bars: FeatureBars, span: int) -> np.ndarray:
    """Return ln(H / L)."""
    return np.asarray(bars.high - bars.low)


def bar_body(bars: FeatureBars, span: int) -> np.ndarray:
    """Return ln(C / O)."""
    return np.asarray(bars.close - bars.open)


def upper_wick(bars: FeatureBars, span: int) -> np.ndarray:
    """Return ln(H / max(O, C))."""
    return np.asarray(bars.high - np.maximum(bars.open, bars.close))


def lower_wick(bars: FeatureBars, span: int) -> np.ndarray:
    """Return ln(min(O, C) / L)."""
    return np.asarray(np.minimum(bars.open, bars.close) - bars.low)


def bar_gap(bars: FeatureBars, span: int) -> np.ndarray:
    """Return ln(O_t / C_(t-1))."""
    return np.asarray(bars.open[1:] - lag(bars.close, 1))


def log_atr(bars: FeatureBars, span: int) -> np.ndarray:
    """Return the log of Wilder's average true range of logs."""
    return log(bars.exponential["true_range"] + SMALLEST_MOVE)


def rsi(bars: FeatureBars, span: int) -> np.ndarray:
    """Return (up - down) / (up + down) of Wilder's means of returns: RSI/50 - 1."""
    return ratio(bars.exponential["returns"], bars.exponential["sizes"], smallest_N=1e-12)


def stochastic(bars: FeatureBars, span: int) -> np.ndarray:
    """Return the log close between the lowest low and the highest high of n bars, from -0.5 to 0.5."""
    low_N, high_N = bars.extremes[span]
    middle_N = (low_N + high_N) / 2
    return np.asarray((last(bars.close, len(low_N)) - middle_N) / (high_N - low_N + SMALLEST_MOVE))


def ema_ratio(bars: FeatureBars, span: int) -> np.ndarray:
    """Return the log close minus its exponential mean."""
    mean_N = bars.exponential[f"close_{span}"]
    return np.asarray(last(bars.close, len(mean_N)) - mean_N)


def macd(bars: FeatureBars, span: int) -> np.ndarray:
    """Return the exponential mean of the log close over 12 bars minus over 26, in average true ranges."""
    means = bars.exponential
    return np.asarray((means["close_12"] - means["close_26"]) / (means["true_range"] + SMALLEST_MOVE))


def up_share(bars: FeatureBars, span: int) -> np.ndarray:
    """Return the share of rising bars minus that of falling ones."""
    return bars.flows[0] / 60


def volume_imbalance(bars: FeatureBars, span: int) -> np.ndarray:
    """Return the share of volume in rising bars minus that in falling ones."""
    _, volume_N, signed_N = bars.flows
    return ratio(signed_N, volume_N, smallest_N=0.0)


FORMULAS = {
    function.__name__: function
    for function in (
        *(log_return, momentum, log_volatility, price_zscore, volume_zscore, bar_range, bar_body, upper_wick),
        *(lower_wick, bar_gap, log_atr, rsi, stochastic, ema_ratio, macd, up_share, volume_imbalance),
    )
}
