"""Labels of a barrier: 2 where the upper one is reached first, 0 the lower one, 1 none of them within `horizon` bars.

A label ends `horizon` bars later, also where a barrier was reached before: else the last bars of a span would have a label only
where the price moved fast.
"""

from __future__ import annotations

import numpy as np

from trainer.data.candles import Candles
from trainer.targets.barrier import Barrier
from trainer.targets.bars import Labels, ends_after, unfitted, unscaled, volatility_unit

fit, scale = unfitted, unscaled
DOWN, NONE, UP = 0.0, 1.0, 2.0


def label(target: Barrier, candles: Candles, clock: np.ndarray) -> Labels:
    """Return the labels; NaN past the end, and where nothing moved before."""
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
    """Return what is wrong with the labels of training and why: that all are of one class."""
    if len(np.unique(labels_NK)) > 1:
        return "", ""
    return "labels of one class only in training", f"barrier_width is {target.barrier_width:g}"
