"""The layout of a batch on processes: which rows this process takes, and how gradients of all processes are
combined.

    ONE                    this process takes every batch whole: workers
    trainer.train.ranks.layout     ranks of one model share every batch

A pack asks its layout and knows nothing of processes. Rows are positions in the *global* batch, so that
dropout, which is keyed by position, does not depend on the number of ranks.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from torch import nn


class Layout:
    """Division of one model's batches among processes. This one is of a single process, which shares
    nothing.
    """

    # Factor on a slice's loss with which the gradients of all ranks add up to the batch's.
    weight: float = 1.0
    divides: bool = False  # each rank holds only a part of the weights

    def part(self, rows: int) -> range:
        """Return the consecutive rows of a batch that this process takes; may be empty if there are fewer
        rows than ranks.
        """
        return range(rows)

    def least_slices(self, rows: int, micro_batch: int) -> int:
        """Return the least number of slices that every process must take of a batch."""
        return 1

    def divide(self, model: nn.Module) -> None:
        """Divide a module's weights among the ranks, in place, if the layout does so."""

    def wrap(self, model: nn.Module, *, slices: int) -> nn.Module:
        """Return the module to run forward, which combines the gradients of all ranks.

        `slices`: the most slices of a batch that one process takes.
        """
        return model

    def share_buffers(self, model: nn.Module) -> None:
        """Give every process the first one's buffers of a module, if each changes its own in a step. All
        must call it.
        """

    def slicing(self, network: nn.Module, *, last: bool) -> AbstractContextManager[object]:
        """Return the context of one slice's forward and backward. Gradients are exchanged only with the
        `last`.
        """
        return nullcontext()


ONE = Layout()


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """Return the blocks of a model, which are compiled alone: the members of its module lists. They share one
    compiled code, which takes a fraction of the model's time.
    """
    lists = (module for module in model.modules() if isinstance(module, nn.ModuleList))
    return [block for blocks in lists for block in blocks if any(True for _ in block.parameters())]


def slices_of(part: range, micro_batch: int, *, least: int = 1) -> list[tuple[range, float]]:
    """Return the slices of a part, at least `least`, each with the factor on its loss.

    Missing slices are the batch's first row with factor 0: every rank must run backward to exchange
    gradients, and with divided weights also each forward.
    """
    firsts = range(part.start, part.stop, micro_batch)
    slices = [(range(first, min(first + micro_batch, part.stop)), 1.0) for first in firsts]
    return slices + [(range(1), 0.0)] * (max(1, least) - len(slices))
