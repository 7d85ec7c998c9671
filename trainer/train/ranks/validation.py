"""Evaluate a model on all ranks: each runs its share of the windows, and every rank gets all outputs, in
order.

Windows go through the model in the same batches as in one process (`readers`), so that outputs are
bit-identical.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import nn

from trainer.train.predict.readers import Evaluate, Reader
from trainer.train.ranks.group import Ranks
from trainer.train.ranks.sharing import shares_of_series


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
