"""The layout of a batch on processes: which rows this one takes, and how its gradients become the batch's.

    ONE             this process takes every batch whole: what workers do
    distributed     ranks of one model share every batch (`trainer.train.distributed`)

A pack asks its layout and knows nothing of processes. Rows are positions in the *global* batch, so that dropout, which is keyed
by position, does not depend on the number of ranks.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from torch import nn


class Layout(Protocol):
    """How ranks share the batches of one model."""

    @property
    def weight(self) -> float:
        """Return the factor on a slice's loss with which the gradients of all ranks add up to the batch's."""

    def part(self, rows: int) -> range:
        """Return the rows of a batch that this process takes: consecutive ones; none where there are fewer rows than ranks."""

    @property
    def divides(self) -> bool:
        """Return whether each rank holds a part of the weights alone."""

    def least_slices(self, rows: int, micro_batch: int) -> int:
        """Return how many slices of a batch every process takes at least."""

    def divide(self, model: nn.Module, *, is_any_module: bool) -> None:
        """Leave each rank its part of a module's weights, in place, where the layout divides them."""

    def wrap(self, model: nn.Module, *, slices: int, is_any_module: bool) -> nn.Module:
        """Return the module to run forward: it brings gradients of all ranks together.

        `slices`: the most of a batch that one process takes one after another; `is_any_module` as in `ModelSettings`.
        """

    def slicing(self, network: nn.Module, *, last: bool) -> AbstractContextManager[object]:
        """Return the context of one slice's forward and backward: gradients travel with the `last` alone."""


class OneProcess:
    """The whole of every batch, here."""

    weight = 1.0
    divides = False

    def part(self, rows: int) -> range:
        """See `Layout.part`."""
        return range(rows)

    def least_slices(self, rows: int, micro_batch: int) -> int:
        """See `Layout.least_slices`."""
        return 1

    def divide(self, model: nn.Module, *, is_any_module: bool) -> None:
        """See `Layout.divide`."""

    def wrap(self, model: nn.Module, *, slices: int, is_any_module: bool) -> nn.Module:
        """See `Layout.wrap`."""
        return model

    def slicing(self, network: nn.Module, *, last: bool) -> AbstractContextManager[object]:
        """See `Layout.slicing`."""
        return nullcontext()


ONE = OneProcess()


def slices_of(part: range, micro_batch: int, *, least: int = 1) -> list[tuple[range, float]]:
    """Return the slices of a part, each with the factor of its loss: `least` of them or more.

    What is missing are slices of the batch's first row that count for nothing: every rank runs backward, since all of them
    take part in the exchange of gradients, and where weights are divided also in that of each forward.
    """
    slices = [(range(first, min(first + micro_batch, part.stop)), 1.0) for first in range(part.start, part.stop, micro_batch)]
    return slices + [(range(1), 0.0)] * (max(1, least) - len(slices))
