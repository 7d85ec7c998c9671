"""Labels of a user's own target: the result of its `label`, with its form checked. They are not scaled.

Shapes: T bars, K label columns.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trainer.base.errors import UsageError
from trainer.base.own_file import as_usage_error, instance_of
from trainer.data.read.candles import Candles
from trainer.targets.bars import Labels, flawless, unfitted, unscaled
from trainer.targets.own import OwnTarget

fit, scale, flaw = unfitted, unscaled, flawless
DO = "See docs/models.md."


def label(target: OwnTarget, candles: Candles, clock: np.ndarray) -> Labels:
    """Return the labels of the user's class. Raises UsageError, one line, if its `label` fails or returns
    another form.
    """
    own, name = instance_of(target), f"{target.class_name}.label"
    with as_usage_error(f"{name} fails"):
        given = own.label(candles)
    if not isinstance(given, tuple) or len(given) != 2:
        raise UsageError(
            f"{name} returns {type(given).__name__}", why="it must return labels and their ends", do=DO
        )
    values_TK, ends_T = _values(given[0], name, len(candles)), _ends(given[1], name, len(candles))
    values_TK[ends_T < 0] = np.nan
    return Labels(values_TK=values_TK, ends_T=ends_T)


def _values(given: Any, name: str, bars: int) -> np.ndarray:
    with as_usage_error(f"{name} returns labels that are not numbers", DO):
        values = np.array(given, dtype=np.float32)
    values_TK = values[:, None] if values.ndim == 1 else values
    if values_TK.ndim != 2 or len(values_TK) != bars or not values_TK.shape[1]:
        why = f"labels of {bars} bars are ({bars},) or ({bars}, K)"
        raise UsageError(f"{name} returns labels of shape {values.shape}", why=why, do=DO)
    return values_TK


def _ends(given: Any, name: str, bars: int) -> np.ndarray:
    with as_usage_error(f"{name} returns ends that are not whole numbers", DO):
        ends_T = np.array(given).astype(np.int64, casting="same_kind")
    if ends_T.shape != (bars,):
        raise UsageError(f"{name} returns ends of shape {ends_T.shape}", why=f"there are {bars} bars", do=DO)
    ends_T = np.where(ends_T < 0, -1, ends_T)
    if ((ends_T >= 0) & (ends_T <= np.arange(bars))).any() or ends_T.max(initial=-1) >= bars:
        why = "the end of a label is a later bar of the series, or -1 without a label"
        raise UsageError(f"{name} returns invalid ends", why=why, do=DO)
    return ends_T
