"""Sums over bars that do not depend on where the series begins, and the form in which a target gives its labels. Numpy only.

A running total of the whole series would: its rounding at bar t is that of all bars before. Here a sum over n bars is made of
sums over powers of two, in an order that follows from n alone.

Shapes: T bars, K label columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from trainer.settings import TargetSettings


@dataclass(frozen=True, kw_only=True)
class Labels:
    """The labels of a series. The label of bar t depends on bars t - reach to `ends_T[t]` and on no other."""

    values_TK: np.ndarray  # float32; NaN if there is none
    ends_T: np.ndarray  # int64: the last bar that each label reads; -1 where the series ends before
    unbroken_T: np.ndarray | None = None  # int64: the bar up to which no hole may lie, where that is not `ends_T`


def sums_over(values_T: np.ndarray, first_N: np.ndarray, counts_N: np.ndarray) -> np.ndarray:
    """Return (N,) float64: the sum of `counts_N[n]` values from `first_N[n]` on. They must lie within the series."""
    total_N, place_N = np.zeros(len(first_N)), np.array(first_N, dtype=np.int64)
    blocks_T, size = np.asarray(values_T, dtype=np.float64), 1
    while size <= counts_N.max(initial=0):
        takes = (counts_N & size) > 0
        total_N[takes] += blocks_T[place_N[takes]]
        place_N[takes] += size
        blocks_T = blocks_T[: len(blocks_T) - size] + blocks_T[size:] if len(blocks_T) > size else blocks_T[:0]
        size *= 2
    return total_N


def squared_returns(close_T: np.ndarray) -> np.ndarray:
    """Return (T,) float64: each bar's squared log return; the first bar has none."""
    return np.concatenate([[0.0], np.diff(np.log(close_T)) ** 2])


def move_ahead(close_T: np.ndarray, horizon: int) -> np.ndarray:
    """Return (T,) float64: log close[t + horizon] / close[t]; NaN past the end."""
    moves_T, log_T = np.full(len(close_T), np.nan), np.log(close_T)
    moves_T[: max(0, len(close_T) - horizon)] = log_T[horizon:] - log_T[:-horizon]
    return moves_T


def ends_after(num_bars: int, horizon: int) -> np.ndarray:
    """Return (T,) int64: the bar `horizon` bars later; -1 past the end."""
    ends_T = np.arange(num_bars, dtype=np.int64) + horizon
    return np.where(ends_T < num_bars, ends_T, -1)


def trailing_deviation(close_T: np.ndarray, span: int) -> np.ndarray:
    """Return (T,) float64: the root of the mean squared log return over the last `span` bars.

    NaN within `span` bars of the beginning, and where nothing moved.
    """
    bars = np.arange(span, len(close_T), dtype=np.int64)
    found_T = np.full(len(close_T), np.nan)
    found_T[span:] = np.sqrt(sums_over(squared_returns(close_T), bars - span + 1, np.full(len(bars), span)) / span)
    return np.where(found_T > 0, found_T, np.nan)


def volatility_unit(close_T: np.ndarray, *, horizon: int, span: int) -> np.ndarray:
    """Return (T,) float64: the volatility over `horizon` bars as the last `span` bars tell it. Bar t uses bars up to t."""
    return np.asarray(trailing_deviation(close_T, span) * np.sqrt(horizon))


def unfitted(target: TargetSettings, labels_NK: np.ndarray) -> dict[str, Any]:
    """Fit nothing: the `fit` of a target whose labels are trained on as they are."""
    return {}


def unscaled(target: TargetSettings, labels_NK: np.ndarray, fitted: dict[str, Any]) -> np.ndarray:
    """Return the labels as they are: the `scale` that goes with `unfitted`."""
    return labels_NK


def flawless(target: TargetSettings, labels_NK: np.ndarray) -> tuple[str, str]:
    """Find nothing wrong: the `flaw` of a target that any labels will do for."""
    return "", ""
