"""Features of momentum and trend. N rows, aligned at their end, as in `shared`. Sources are in
`trainer.data.feature_table`.
"""

from __future__ import annotations

from functools import reduce

import numpy as np

from trainer.data.formulas.shared import FeatureBars, ratio
from trainer.data.rolling import change, lag, last, rolling_ages, rolling_sum


def efficiency_ratio(bars: FeatureBars, span: int) -> np.ndarray:
    """Return the return of n bars by the sum of the sizes of its bars' returns: -1 to 1."""
    way_N = rolling_sum(np.abs(bars.returns), (span,))[span]
    return ratio(last(change(bars.close, span), len(way_N)), way_N, smallest_N=0.0)


def return_autocorrelation(bars: FeatureBars, span: int) -> np.ndarray:
    """Return the sum of r_t r_(t-1) over n pairs by the sum of r_t^2."""
    products_N = rolling_sum(bars.returns[1:] * lag(bars.returns, 1), (span,))[span]
    whole_N = rolling_sum(bars.returns**2, (span,))[span]
    return ratio(products_N, last(whole_N, len(products_N)), smallest_N=0.0)


def cci(bars: FeatureBars, span: int) -> np.ndarray:
    """Return (TP - mean) / (0.015 x mean deviation) over n bars, with TP = (H + L + C) / 3; 0 if it does not
    vary.
    """
    typical_N = bars.typical
    mean_N = rolling_sum(typical_N, (span,))[span] / span
    rows = len(mean_N)
    off = (last(lag(typical_N, age), rows) - mean_N for age in range(span))
    deviation_N = reduce(np.add, map(np.abs, off)) / span
    return ratio(last(typical_N, rows) - mean_N, 0.015 * deviation_N, smallest_N=1e-12 * mean_N)


def aroon(bars: FeatureBars, span: int) -> np.ndarray:
    """Return (bars since the lowest low - bars since the highest high) / n, of n + 1 bars: -1 to 1."""
    _, since_high_N = rolling_ages(bars.high, span + 1)
    _, since_low_N = rolling_ages(-bars.low, span + 1)
    return np.asarray((since_low_N - since_high_N) / span)


def near_high(bars: FeatureBars, span: int) -> np.ndarray:
    """Return ln(C / highest H of n bars)."""
    highest_N, _ = rolling_ages(bars.high, span)
    return np.asarray(last(bars.close, len(highest_N)) - highest_N)


def skip_return(bars: FeatureBars, span: int) -> np.ndarray:
    """Return ln(C_(t - n / 12) / C_(t - n)): the return of n bars without the last twelfth of them."""
    recent = span // 12
    return change(lag(bars.close, recent), span - recent)


FORMULAS = {
    function.__name__: function
    for function in (efficiency_ratio, return_autocorrelation, cci, aroon, near_high, skip_return)
}
