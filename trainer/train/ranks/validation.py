"""Evaluate a model on all ranks: each runs its share of the windows, and every rank gets all outputs, in
order.

Windows of the test span go through the model in the same batches as in one process (`readers`), so that
outputs are bit-identical; those of a validation agree by its tolerance (`epoch_scores`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import nn

from trainer.train.predict.readers import Evaluate, Reader
from trainer.train.ranks.group import Ranks, share


def shared_outputs(ranks: Ranks, columns: int) -> Evaluate:
    """Return the function that evaluates a network with `columns` outputs on all ranks. Every rank must call
    it.
    """

    def evaluate(network: nn.Module, parts: Sequence[tuple[np.ndarray, Reader]]) -> np.ndarray:
        units = [reader.units(bars) for bars, reader in parts]
        shares = [shares_of_series(units, rank=rank, ranks=ranks.count) for rank in range(ranks.count)]
        counts = [sum(one.stop - one.start for one in share) for share in shares]
        own = [np.empty((0, columns))]
        for (bars, reader), one in zip(parts, shares[ranks.rank], strict=True):
            if one.stop > one.start:
                own.append(reader.outputs(network, bars[one]))
        return ranks.joined(np.concatenate(own), counts)

    return evaluate


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
