"""The formulas of features: one function each, which takes the bars and a span and returns its values.

`trainer.data.feature_table` declares for each function its spans, lookback, formula and source.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from trainer.data.formulas import clock, prices, trend, volatility, volume
from trainer.data.formulas.shared import FeatureBars

Formula = Callable[[FeatureBars, int], np.ndarray]

FORMULAS: dict[str, Formula] = {
    **prices.FORMULAS,
    **clock.FORMULAS,
    **volatility.FORMULAS,
    **trend.FORMULAS,
    **volume.FORMULAS,
}
