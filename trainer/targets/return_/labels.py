"""Labels of return: log close[t + horizon] / close[t], divided by the trailing volatility over the horizon.

The label at bar t uses closes from t - volatility_bars to t + horizon.
"""

from __future__ import annotations

import numpy as np

from trainer.data.read.candles import Candles
from trainer.targets.bars import Labels, ends_after, flawless, move_ahead, unfitted, unscaled, volatility_unit
from trainer.targets.return_ import Return

fit, scale, flaw = unfitted, unscaled, flawless


def label(target: Return, candles: Candles, clock: np.ndarray) -> Labels:
    """Return the labels; NaN past the end, and without trailing volatility."""
    unit_T = volatility_unit(candles.close, horizon=target.horizon, span=target.volatility_bars)
    labels_T = move_ahead(candles.close, target.horizon) / unit_T
    return Labels(
        values_TK=labels_T.astype(np.float32)[:, None], ends_T=ends_after(len(labels_T), target.horizon)
    )
