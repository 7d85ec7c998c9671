"""The share of each rank in a batch or an evaluation, as pure functions of sizes.

Shares are consecutive, in the order of the ranks, differ by one at most, and cover everything exactly once,
even if the count is not a multiple of the ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def share(count: int, *, rank: int, ranks: int) -> range:
    """Return which of `count` items a rank takes; may be empty if there are fewer items than ranks."""
    return range(count * rank // ranks, count * (rank + 1) // ranks)


def shares_of_series(units: Sequence[np.ndarray], *, rank: int, ranks: int) -> list[slice]:
    """Return which outputs of each series a rank evaluates.

    `units` has, for each series, the number of the batch (or chunk) that computes each output, ascending.
    Batches are not divided, so that every output is computed exactly as in one process.
    """
    firsts = [
        np.concatenate([[True], one[1:] != one[:-1]]) if len(one) else np.empty(0, dtype=bool)
        for one in units
    ]
    own = share(sum(int(first.sum()) for first in firsts), rank=rank, ranks=ranks)
    slices, before = [], 0
    for first in firsts:
        number = before + np.cumsum(first) - 1  # of the batch, over all series
        slices.append(slice(int(np.searchsorted(number, own.start)), int(np.searchsorted(number, own.stop))))
        before += int(first.sum())
    return slices
