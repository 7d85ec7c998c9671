"""Labels of direction: the sign of log close[t + horizon] / close[t], as 1 and 0. Uses prices after t and
close[t] only.
"""

from __future__ import annotations

import numpy as np

from trainer.data.read.candles import Candles
from trainer.targets.bars import Labels, ends_after, unfitted, unscaled
from trainer.targets.direction import Direction

fit, scale = unfitted, unscaled


def label(target: Direction, candles: Candles, clock: np.ndarray) -> Labels:
    """Return 1 if the close is higher `horizon` bars later, 0 if it is lower, NaN for a tie and past
    the end.
    """
    close, horizon = candles.close, target.horizon
    labels = np.full(len(close), np.nan, dtype=np.float32)
    if len(close) > horizon:
        change = close[horizon:] - close[:-horizon]  # the sign of the difference is the sign of the log ratio
        labels[: len(change)] = np.where(change > 0, 1.0, np.where(change < 0, 0.0, np.nan))
    return Labels(values_TK=labels[:, None], ends_T=ends_after(len(close), horizon))


def flaw(target: Direction, labels_NK: np.ndarray) -> tuple[str, str]:
    """Return the flaw of training labels and its reason: all are of one class; ("", "") if there is none."""
    kinds = np.unique(labels_NK[:, 0])
    if len(kinds) > 1:
        return "", ""
    return (
        "labels of one class only in training",
        f"every close {'rises' if kinds[0] else 'falls'} over {target.horizon} bars",
    )
