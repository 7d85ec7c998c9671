"""Adjust prices as traded for splits and dividends, by the columns that a fetched file has beside them.

A file holds what was traded, and never changes; a later dividend is in a later file, and the reader of all of
them knows it. The factor of a dividend is 1 - dividend / close of the bar before (CRSP, Data Descriptions
Guide, "Adjusted data"; Yahoo's adjusted close is computed so, too: https://help.yahoo.com/kb/SLN28256.html,
read 2026-11-27).
"""

from __future__ import annotations

import numpy as np

_CLOSE, _VOLUME = 3, 4


def applied(values: np.ndarray) -> np.ndarray:
    """Return bars without their last two rows, by which they are adjusted: `values` (5 + C + 2, N) of
    consecutive bars, with splits and dividends. Changes `values`.
    """
    adjust_by_actions(values[:-2], *values[-2:])
    return values[:-2]


def adjust_by_actions(values: np.ndarray, split: np.ndarray, dividend: np.ndarray) -> None:
    """Adjust open, high, low, close and volume (5, ...) of consecutive bars in place, for later actions.

    `split` (N,): new shares for one old, at the first bar that trades after it; 1 or 0 for none. `dividend`
    (N,): of a share as traded, at its ex-date. Prices are divided by later splits and lowered by later
    dividends; volume is multiplied by later splits. The last bars are as traded.
    """
    if not split.size:
        return
    split = np.where(np.isfinite(split) & (split > 0), split, 1.0)
    before = np.concatenate([[np.nan], values[_CLOSE, :-1]])
    with np.errstate(divide="ignore", invalid="ignore"):
        share = 1.0 - dividend / (before / split)  # the close before, in shares of after
    share = np.where((dividend > 0) & (share > 0) & np.isfinite(share), share, 1.0)
    splits = _after(split)
    values[:4] *= _after(share) / splits
    values[_VOLUME] *= splits


def _after(factors: np.ndarray) -> np.ndarray:
    """Return the product of all later factors for each bar, (N,)."""
    return np.append(np.cumprod(factors[:0:-1])[::-1], 1.0)
