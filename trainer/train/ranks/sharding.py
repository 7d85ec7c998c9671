"""FSDP2 as a pack's layout: each rank holds a part of every weight and gathers one block at a time for its
computation.

For models that do not fit one GPU with gradients and moments (`trainer.machines.ranks`). Losses and
gradients equal DDP's: the same rows, the same sum over ranks. Blocks are the members of a model's module
lists.
"""

from __future__ import annotations

import math
import warnings
from contextlib import AbstractContextManager, nullcontext

from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from trainer.base.errors import UsageError
from trainer.train.ranks.blocks import blocks_of
from trainer.train.ranks.group import Ranks
from trainer.train.ranks.layout import SharedBatch


class FullySharded(SharedBatch):
    """A layout by FSDP2; every rank has a part of the model."""

    divides = True

    def __init__(self, ranks: Ranks, *, compiles: bool = False) -> None:
        """See `SharedBatch`."""
        super().__init__(ranks, compiles=compiles)
        self._mesh: DeviceMesh = init_device_mesh(ranks.device.type, (ranks.count,))

    def least_slices(self, rows: int, micro_batch: int) -> int:
        """See `packs.layout.Layout.least_slices`: as many as the rank with the most rows, since all gather
        together.
        """
        return math.ceil(math.ceil(rows / self._ranks.count) / micro_batch)

    def divide(self, model: nn.Module, *, is_any_module: bool) -> None:
        """See `packs.layout.Layout.divide`. Raises UsageError for a module of a user's own."""
        if is_any_module:
            raise UsageError(
                "a model of your own can't be divided among GPUs",
                why="its frozen, tied and unused weights are not known",
                do="Take a GPU that it fits, or one of our models.",
            )
        # Some models return views; we never change outputs in place.
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
        for block in blocks_of(model):
            if self._compiles:
                block.compile()
            fully_shard(block, mesh=self._mesh)
        fully_shard(model, mesh=self._mesh)

    def wrap(self, model: nn.Module, *, slices: int, is_any_module: bool) -> nn.Module:
        """See `packs.layout.Layout.wrap`."""
        return model

    def slicing(self, network: nn.Module, *, last: bool) -> AbstractContextManager[object]:
        """See `packs.layout.Layout.slicing`."""
        assert isinstance(network, FSDPModule)
        network.set_requires_gradient_sync(last)
        return nullcontext()
