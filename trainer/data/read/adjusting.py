"""Adjust prices for splits and dividends, if a file has adjusted closes: scale each bar by adjusted close /
close.
"""

from __future__ import annotations

import numpy as np

from trainer.base.errors import DataError
from trainer.data.read.headers import CandleHeader

_CLOSE = 3


def adjust(
    source: CandleHeader, timestamp_N: np.ndarray, values_CN: np.ndarray, adjusted_N: np.ndarray
) -> None:
    """Scale open, high and low, the first rows of `values_CN`, in place, and replace close by the adjusted
    close.

    Volume stays as traded. Raises DataError for an adjusted close that is missing or not above zero.
    """
    close_N = values_CN[_CLOSE].copy()
    bad_N = ~((adjusted_N > 0) & np.isfinite(adjusted_N)) & ~np.isnan(close_N)
    if bad_N.any():
        first = np.datetime64(int(timestamp_N[bad_N.argmax()]), "ns").astype("datetime64[s]")
        raise DataError(
            f"{source.path} has no adjusted close in {int(bad_N.sum())} bars of column"
            f" {source.adjusted.strip()}",
            why=f"the first at {first}Z",
            do="Fill the column, or drop it: prices are then taken as traded.",
        )
    with np.errstate(divide="ignore", invalid="ignore"):  # a close of zero is refused later
        values_CN[:_CLOSE] *= adjusted_N / close_N
    values_CN[_CLOSE] = np.where(np.isnan(close_N) | (close_N <= 0), close_N, adjusted_N)
