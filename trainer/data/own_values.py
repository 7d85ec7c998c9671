"""Values of a user's own features."""

from __future__ import annotations

import numpy as np

from trainer.base.errors import DataError, UsageError
from trainer.base.own_file import as_usage_error
from trainer.data.own_features import DO, OwnFeatures, functions_of, lookback_of
from trainer.data.read.candles import Candles, time_text


def compute_own(own: OwnFeatures, name: str, candles: Candles) -> np.ndarray:
    """Return a user's feature (N,) float64; 0 in the first rows, which lack bars that it looks back. Raises
    UsageError for another form, DataError for values that are not finite.
    """
    function = functions_of(own)[name]
    with as_usage_error(f"{name} of {own.base_name} fails"):
        values_N = np.array(function(candles.read_only()), dtype=np.float64)
    if values_N.shape != (len(candles),):
        why = f"of {len(candles)} bars it must be ({len(candles)},)"
        raise UsageError(f"{name} of {own.base_name} has shape {values_N.shape}", why=why, do=DO)
    back = lookback_of(name, function)
    values_N[:back] = 0.0
    bad_N = ~np.isfinite(values_N)
    if bad_N[back:].any():
        at = time_text(candles.timestamp[back + int(bad_N[back:].argmax())])
        raise DataError(
            f"{name} of {candles.symbol} is not finite at {at}",
            why=f"{own.base_name} computes it",
            do="Return a number for every bar after the first `lookback` ones.",
        )
    return values_N
