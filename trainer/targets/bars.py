"""Labels, and sums over bars that do not depend on where the series begins. Numpy only.

A running total of the whole series would depend on it, since its rounding error at bar t comes from all bars
before. Here a sum over n bars is made of sums over powers of two, in an order that depends only on n.

Shapes: T bars, K label columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainer.data.timeframes import DAY

LEAST_DEVIATION = 1e-5  # log return of a bar: a tenth of a basis point


@dataclass(frozen=True, kw_only=True)
class Labels:
    """The labels of a series. The label of bar t depends on bars t - reach to `ends_T[t]` and on no other."""

    values_TK: np.ndarray  # float32; NaN if there is none
    ends_T: np.ndarray  # int64: the last bar that each label reads; -1 if the series ends before
    unbroken_T: np.ndarray | None = None  # int64: the bar up to which there must be no hole; None: `ends_T`


def sums_over(values_T: np.ndarray, first_N: np.ndarray, counts_N: np.ndarray) -> np.ndarray:
    """Return (N,) float64: the sum of `counts_N[n]` values from `first_N[n]` on, all of them within the
    series.
    """
    total_N, place_N = np.zeros(len(first_N)), np.array(first_N, dtype=np.int64)
    blocks_T, size = np.asarray(values_T, dtype=np.float64), 1
    while size <= counts_N.max(initial=0):
        takes = (counts_N & size) > 0
        total_N[takes] += blocks_T[place_N[takes]]
        place_N[takes] += size
        blocks_T = (
            blocks_T[: len(blocks_T) - size] + blocks_T[size:] if len(blocks_T) > size else blocks_T[:0]
        )
        size *= 2
    return total_N


def squared_returns(close_T: np.ndarray) -> np.ndarray:
    """Return (T,) float64: each bar's squared log return; 0 for the first bar."""
    return np.concatenate([[0.0], np.diff(np.log(close_T)) ** 2])


def ends_after(num_bars: int, horizon: int) -> np.ndarray:
    """Return (T,) int64: the bar `horizon` bars later; -1 past the end."""
    ends_T = np.arange(horizon, num_bars + horizon, dtype=np.int64)
    ends_T[max(0, num_bars - horizon) :] = -1
    return ends_T


def trailing_deviation(close_T: np.ndarray, span: int) -> np.ndarray:
    """Return (T,) float64: the root of the mean squared log return over the last `span` bars.

    NaN in the first `span` bars, and if the close did not move.
    """
    bars = np.arange(span, len(close_T), dtype=np.int64)
    deviation_T = np.full(len(close_T), np.nan)
    deviation_T[span:] = np.sqrt(
        sums_over(squared_returns(close_T), bars - span + 1, np.full(len(bars), span)) / span
    )
    return np.where(deviation_T > 0, deviation_T, np.nan)


def volatility_unit(close_T: np.ndarray, *, horizon: int, span: int) -> np.ndarray:
    """Return (T,) float64: the volatility over `horizon` bars, estimated from the last `span` bars up to each
    bar; never below `LEAST_DEVIATION` a bar, so that a stretch of nearly equal closes makes no label huge.
    """
    return np.asarray(np.maximum(trailing_deviation(close_T, span), LEAST_DEVIATION) * np.sqrt(horizon))


def moves_in_volatilities(close_T: np.ndarray, *, horizon: int, span: int) -> Labels:
    """Return log close[t + horizon] / close[t] in units of `volatility_unit`; NaN past the end, and without
    trailing volatility.
    """
    bars, log_T = len(close_T), np.log(close_T)
    moves_T = np.full(bars, np.nan)
    moves_T[: max(0, bars - horizon)] = log_T[horizon:] - log_T[:-horizon]
    moves_T /= volatility_unit(close_T, horizon=horizon, span=span)
    return Labels(values_TK=moves_T.astype(np.float32)[:, None], ends_T=ends_after(bars, horizon))


def log_root(sums: np.ndarray) -> np.ndarray:
    """Return the log of the root of each sum; NaN if the sum is zero."""
    with np.errstate(divide="ignore"):
        logs = 0.5 * np.log(sums)
    return np.where(np.isfinite(logs), logs, np.nan)


def past_log_volatility(close_T: np.ndarray, clock: np.ndarray, sessions: int) -> np.ndarray:
    """Return the log realized volatility (T,) float64 over the `sessions` sessions that end at each bar.

    NaN if the series does not reach so far back, or if the close did not move. Bar t uses bars up to t.
    """
    begins = np.searchsorted(clock, clock - sessions * DAY, side="right") - 1
    known = np.flatnonzero(begins >= 0)
    logs_T = np.full(len(clock), np.nan)
    logs_T[known] = log_root(sums_over(squared_returns(close_T), begins[known] + 1, known - begins[known]))
    return logs_T
