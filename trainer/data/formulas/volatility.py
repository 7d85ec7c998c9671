"""Estimators of volatility from open, high, low and close. O, H, L, C are logarithms here.

N rows, aligned at their end, as in `shared`. Sources are in `trainer.data.feature_table`.
"""

from __future__ import annotations

import math

import numpy as np

from trainer.data.formulas.shared import FeatureBars, log_deviation, ratio
from trainer.data.rolling import lag, last, rolling_moments, rolling_sum


def log_parkinson(bars: FeatureBars, span: int) -> np.ndarray:
    """Return ln of the root of the mean of (H - L)^2 / (4 ln 2)."""
    squares_N = (bars.high - bars.low) ** 2
    return log_deviation(rolling_sum(squares_N, (span,))[span] / (span * 4 * math.log(2)))


def log_garman_klass(bars: FeatureBars, span: int) -> np.ndarray:
    """Return ln of the root of the mean of (H - L)^2 / 2 - (2 ln 2 - 1) (C - O)^2."""
    wide_N, body_N = (bars.high - bars.low) ** 2, (bars.close - bars.open) ** 2
    variance_N = wide_N * 0.5 - body_N * (2 * math.log(2) - 1)
    return log_deviation(rolling_sum(variance_N, (span,))[span] / span)


def log_rogers_satchell(bars: FeatureBars, span: int) -> np.ndarray:
    """Return ln of the root of the mean of (H - O) (H - C) + (L - O) (L - C)."""
    return log_deviation(rolling_sum(_rogers_satchell(bars), (span,))[span] / span)


def log_yang_zhang(bars: FeatureBars, span: int) -> np.ndarray:
    """Return ln of the root of V_overnight + k V_body + (1 - k) V_rogers_satchell, with
    k = 0.34 / (1.34 + (n + 1) / (n - 1)), and variances of n - 1.
    """
    gap_N, body_N = bars.open[1:] - lag(bars.close, 1), bars.close - bars.open
    _, gaps_N = rolling_moments(gap_N, (span,))[span]
    _, bodies_N = rolling_moments(body_N, (span,))[span]
    shapes_N = rolling_sum(_rogers_satchell(bars), (span,))[span] / span
    k, unbiased, rows = 0.34 / (1.34 + (span + 1) / (span - 1)), span / (span - 1), len(gaps_N)
    variances_N = gaps_N**2 + last(bodies_N, rows) ** 2 * k
    return log_deviation(variances_N * unbiased + last(shapes_N, rows) * (1 - k))


def semivariance_share(bars: FeatureBars, span: int) -> np.ndarray:
    """Return the share of squared returns that are of rising bars minus that of falling ones."""
    squares_N = bars.returns**2
    signed_N = squares_N * np.sign(bars.returns)
    whole_N = rolling_sum(squares_N, (span,))[span]
    return ratio(rolling_sum(signed_N, (span,))[span], whole_N, smallest_N=0.0)


def jump_share(bars: FeatureBars, span: int) -> np.ndarray:
    """Return 1 - (pi / 2) sum |r_t| |r_(t-1)| / sum r_t^2, from the last n returns and their pairs: the part
    of the variance that comes in jumps.
    """
    size_N = np.abs(bars.returns)
    pairs_N = rolling_sum(size_N[1:] * lag(size_N, 1), (span - 1,))[span - 1]
    whole_N = rolling_sum(bars.returns**2, (span,))[span]
    scale = math.pi / 2 * span / (span - 1)
    return np.asarray(
        (whole_N > 0) * (1 - ratio(last(pairs_N, len(whole_N)) * scale, whole_N, smallest_N=0.0))
    )


def _rogers_satchell(bars: FeatureBars) -> np.ndarray:
    up_N = (bars.high - bars.open) * (bars.high - bars.close)
    return np.asarray(up_N + (bars.low - bars.open) * (bars.low - bars.close))


FORMULAS = {
    function.__name__: function
    for function in (
        *(log_parkinson, log_garman_klass, log_rogers_satchell, log_yang_zhang),
        *(semivariance_share, jump_share),
    )
}
