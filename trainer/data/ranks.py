"""Cross-sectional ranks: replace each value by its rank among the series that are present on its date. Numpy
only.

Shapes: D dates, S series.
"""

from __future__ import annotations

import math

import numpy as np

UNIT = math.sqrt(12)  # scales ranks spread evenly over an interval of 1 to a deviation of 1


def ranks(values_DS: np.ndarray) -> np.ndarray:
    """Return (D, S) float64: the rank of each value on its date, from about -1.73 to 1.73, with mean 0; NaN
    where it is NaN.

    Equal values share their mean rank; a value alone on its date has 0. Each date is ranked by itself.
    """
    order_DS = np.argsort(values_DS, axis=1, kind="stable")  # NaN last
    sorted_DS = np.take_along_axis(values_DS, order_DS, axis=1)
    counts_D1 = np.isfinite(sorted_DS).sum(axis=1, keepdims=True)
    place_S = np.arange(values_DS.shape[1])
    is_first_DS = np.ones(values_DS.shape, dtype=bool)
    is_first_DS[:, 1:] = sorted_DS[:, 1:] != sorted_DS[:, :-1]
    is_last_DS = np.ones(values_DS.shape, dtype=bool)
    is_last_DS[:, :-1] = is_first_DS[:, 1:]
    first_DS = np.maximum.accumulate(np.where(is_first_DS, place_S, 0), axis=1)
    last_DS = np.minimum.accumulate(np.where(is_last_DS, place_S, len(place_S))[:, ::-1], axis=1)[:, ::-1]
    middle_DS = (first_DS + last_DS) / 2
    spread_DS = UNIT * (middle_DS - (counts_D1 - 1) / 2) / np.maximum(counts_D1, 1)
    ranked_DS = np.empty(values_DS.shape)
    np.put_along_axis(ranked_DS, order_DS, np.where(np.isnan(sorted_DS), np.nan, spread_DS), axis=1)
    return ranked_DS
