"""Labels of barrier: 2 if the upper barrier is reached first, 0 if the lower one, 1 if neither within
`horizon` bars.

A label always ends `horizon` bars later, even if a barrier is reached before: otherwise the last bars of a
span would have labels only after fast moves.
"""

from __future__ import annotations

import numpy as np

from trainer.data.read.candles import Candles
from trainer.targets.barrier import Barrier
from trainer.targets.bars import Labels, ends_after, unfitted, unscaled, volatility_unit

fit, scale = unfitted, unscaled
DOWN, NONE, UP = 0.0, 1.0, 2.0


def label(target: Barrier, candles: Candles, clock: np.ndarray) -> Labels:
    """Return the labels; NaN past the end, and without trailing volatility."""
    close, horizon = candles.close, target.horizon
    unit_T = volatility_unit(close, horizon=horizon, span=target.volatility_bars)
    distance, log_close = target.barrier_width * unit_T, np.log(close)
    labels = np.full(len(close), np.nan, dtype=np.float32)
    known = np.isfinite(distance[: max(0, len(close) - horizon)])
    open_ = np.flatnonzero(known)
    labels[open_] = NONE
    for ahead in range(1, horizon + 1):
        move = log_close[open_ + ahead] - log_close[open_]
        labels[open_[move >= distance[open_]]] = UP
        labels[open_[move <= -distance[open_]]] = DOWN
        open_ = open_[np.abs(move) < distance[open_]]
    return Labels(values_TK=labels[:, None], ends_T=ends_after(len(close), horizon))


def flaw(target: Barrier, labels_NK: np.ndarray) -> tuple[str, str]:
    """Return the flaw of training labels and its reason: all are of one class; ("", "") if there is none."""
    if len(np.unique(labels_NK)) > 1:
        return "", ""
    return "labels of one class only in training", f"target.barrier_width is {target.barrier_width:g}"
