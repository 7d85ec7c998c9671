"""Features of volume and of its relation to price. N rows, aligned at their end, as in `shared`. Sources are
in `trainer.data.feature_table`.
"""

from __future__ import annotations

import numpy as np

from trainer.data.formulas.shared import FeatureBars, log, ratio
from trainer.data.rolling import change, last, rolling_correlation, rolling_sum

ILLIQUIDITY_SPAN = 15  # of the recent bars


def log_relative_volume(bars: FeatureBars, span: int) -> np.ndarray:
    """Return ln(1 + volume / its mean of n bars); 0 if that is 0."""
    mean_N = rolling_sum(bars.volume, (span,))[span] / span
    return log(1 + ratio(last(bars.volume, len(mean_N)), mean_N, smallest_N=0.0))


def vwap_distance(bars: FeatureBars, span: int) -> np.ndarray:
    """Return ln(C / mean of (H + L + C) / 3 of n bars, weighted by volume); 0 without volume."""
    whole_N = rolling_sum(bars.volume, (span,))[span]
    mean_N = ratio(rolling_sum(bars.typical * bars.volume, (span,))[span], whole_N, smallest_N=0.0)
    is_real_N = mean_N > 0
    distance_N = last(bars.close, len(mean_N)) - log(np.where(is_real_N, mean_N, 1.0))
    return np.where(is_real_N, distance_N, 0.0)


def money_flow(bars: FeatureBars, span: int) -> np.ndarray:
    """Return (up - down) / (up + down) of n bars, of TP x volume by whether TP = (H + L + C) / 3 rose or
    fell: the money flow index / 50 - 1.
    """
    flow_N = (bars.typical * bars.volume)[1:]
    sign_N = np.sign(change(bars.typical, 1))
    whole_N = rolling_sum(flow_N * np.abs(sign_N), (span,))[span]
    return ratio(rolling_sum(flow_N * sign_N, (span,))[span], whole_N, smallest_N=0.0)


def chaikin_money_flow(bars: FeatureBars, span: int) -> np.ndarray:
    """Return the sum of volume x ((C - L) - (H - C)) / (H - L) over n bars by the sum of volume."""
    _, high_N, low_N, close_N = bars.raw
    place_N = ratio((close_N - low_N) - (high_N - close_N), high_N - low_N, smallest_N=0.0)
    whole_N = rolling_sum(bars.volume, (span,))[span]
    return ratio(rolling_sum(place_N * bars.volume, (span,))[span], whole_N, smallest_N=0.0)


def log_illiquidity(bars: FeatureBars, span: int) -> np.ndarray:
    """Return ln of the mean of |r| / (C x volume) over 15 bars by that over n; 0 where one of them is 0."""
    money_N = last(bars.raw[3] * bars.volume, len(bars.returns))
    impact_N = ratio(np.abs(bars.returns), money_N, smallest_N=0.0)
    sums = rolling_sum(impact_N, (ILLIQUIDITY_SPAN, span))
    whole_N = sums[span] / span
    recent_N = last(sums[ILLIQUIDITY_SPAN], len(whole_N)) / ILLIQUIDITY_SPAN
    both_N = ratio(recent_N, whole_N, smallest_N=0.0)
    return log(np.where(both_N > 0, both_N, 1.0))


def price_volume_correlation(bars: FeatureBars, span: int) -> np.ndarray:
    """Return the correlation of return and volume over n bars; 0 if one of them does not vary."""
    return rolling_correlation(bars.returns, last(bars.volume, len(bars.returns)), span)


FORMULAS = {
    function.__name__: function
    for function in (
        *(log_relative_volume, vwap_distance, money_flow, chaikin_money_flow),
        *(log_illiquidity, price_volume_correlation),
    )
}
