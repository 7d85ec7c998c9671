"""Labels, in per cent of the close."""

from __future__ import annotations

import numpy as np

from tests.trainer.outside.extremes import Extremes
from trainer.data.read.candles import Candles
from trainer.targets.bars import Labels, ends_after, flawless, unfitted, unscaled

fit, scale, flaw = unfitted, unscaled, flawless


def label(target: Extremes, candles: Candles, clock: np.ndarray) -> Labels:
    close, horizon = candles.close, target.horizon
    values_TK = np.full((len(close), 2), np.nan, dtype=np.float32)
    ahead = np.stack([close[1 + step : len(close) - horizon + 1 + step] for step in range(horizon)])
    now = close[: len(close) - horizon]
    values_TK[: len(now)] = 100 * (np.stack([ahead.max(0), ahead.min(0)], axis=1) / now[:, None] - 1)
    return Labels(values_TK=values_TK, ends_T=ends_after(len(close), horizon))
