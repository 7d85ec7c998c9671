"""The layouts of ranks, which share every batch: DDP, and FSDP2 for models that do not fit one GPU.

By DDP every rank has the whole model, and gradients are summed during backward. By FSDP2 each rank holds a
part of every weight and gathers one block at a time for its computation, in the type of its matrix products;
gradients are summed in fp32. In fp32 its losses and gradients equal DDP's. Blocks, the members of a model's
module lists, are also what is compiled.

Both divide the sum of gradients by the number of ranks; `weight` undoes that. Each rank's loss is already
divided by the number of labels in the whole batch, so the sum over ranks is the batch's mean even if the
ranks' shares differ.
"""

from __future__ import annotations

import math
import warnings
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, cast

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from trainer.base.errors import UsageError
from trainer.job.job import Job
from trainer.train.packs.layout import Layout, blocks_of
from trainer.train.precision import matmul_dtype
from trainer.train.ranks.group import Ranks, share

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule


class _Shared(Layout):
    """Base of the layouts of ranks: the rows of a batch that a rank takes, and compiled blocks."""

    def __init__(self, ranks: Ranks, job: Job) -> None:
        self._ranks, self._job, self._on_gpu = ranks, job, ranks.device.type == "cuda"
        self.weight = float(ranks.count)

    def part(self, rows: int) -> range:
        """See `Layout.part`."""
        return share(rows, rank=self._ranks.rank, ranks=self._ranks.count)

    def _compiled(self, model: nn.Module) -> list[nn.Module]:
        """Compile the model's blocks unless the job forbids it; return them. `auto` compiles on GPUs, but no
        module of a user's own.
        """
        blocks, compiles = blocks_of(model), self._job.expert.compile
        if compiles == "always" or (
            compiles == "auto" and self._on_gpu and not self._job.model.is_any_module
        ):
            for block in blocks:
                block.compile()
        return blocks


class DataParallel(_Shared):
    """A layout by DDP.

    Gradients are compressed to bf16 if PCIe connects the GPUs and the job multiplies in half precision
    anyway; over NVLink the casts cost more than the bytes. Only with NCCL: torch's hook refuses gloo.
    """

    def __init__(self, ranks: Ranks, job: Job, *, link: str = "") -> None:
        """`link` connects the GPUs: see `machine_file.MachineFacts`."""
        super().__init__(ranks, job)
        is_half = matmul_dtype(job, ranks.device) != torch.float32
        self._compresses = self._on_gpu and is_half and link == "PCIe"

    def wrap(self, model: nn.Module, *, slices: int) -> nn.Module:
        """See `Layout.wrap`. Raises UsageError for batch norm on CPUs.

        A static graph needs one backward per step (with `no_sync` torch aborts in `expect_autograd_hooks_`)
        and the same weights in every batch, which a user's own module does not guarantee.
        """
        if any(isinstance(module, _BatchNorm) for module in model.modules()):
            if not self._on_gpu:
                raise UsageError(
                    "batch norm on several CPU ranks",
                    why="torch synchronizes its statistics on GPUs only, so each rank would have its own",
                    do="Set train.distributed to never, or use layer or group norm.",
                )
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
        self._compiled(model)
        is_any_module = self._job.model.is_any_module
        wrapped = DistributedDataParallel(
            model,
            device_ids=[self._ranks.device.index] if self._on_gpu else None,
            gradient_as_bucket_view=True,
            static_graph=slices <= 1 and not is_any_module,
            find_unused_parameters=is_any_module,
            forward_sync_buffers=is_any_module,
        )
        if self._compresses:
            wrapped.register_comm_hook(None, bf16_compress_hook)
        return wrapped

    @torch.no_grad()
    def share_buffers(self, model: nn.Module) -> None:
        """See `Layout.share_buffers`. DDP does so only as the next step begins."""
        for buffer in model.buffers() if self._job.model.is_any_module else ():
            buffer.copy_(self._ranks.from_first(buffer.contiguous()))

    def slicing(self, network: nn.Module, *, last: bool) -> AbstractContextManager[object]:
        """See `Layout.slicing`."""
        assert isinstance(network, DistributedDataParallel)
        return nullcontext() if last else network.no_sync()


class FullySharded(_Shared):
    """A layout by FSDP2."""

    divides = True

    def __init__(self, ranks: Ranks, job: Job) -> None:
        super().__init__(ranks, job)
        shape: tuple[int, ...] = (ranks.count,)
        if ranks.nodes > 1:  # divided in each machine, with a copy in each: its links are the fast ones
            shape = (ranks.nodes, ranks.per_node)
        self._mesh = init_device_mesh(ranks.device.type, shape)

    def least_slices(self, rows: int, micro_batch: int) -> int:
        """See `Layout.least_slices`: as many as the rank with the most rows, since all gather together."""
        return math.ceil(math.ceil(rows / self._ranks.count) / micro_batch)

    def divide(self, model: nn.Module) -> None:
        """See `Layout.divide`. Raises UsageError for a module of a user's own."""
        if self._job.model.is_any_module:
            raise UsageError(
                "a model of your own can't be divided among GPUs",
                why="its frozen, tied and unused weights are not known",
                do="Take a GPU that it fits, or one of our models.",
            )
        # Late: takes two seconds, and DDP does not need it.
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        dtype = matmul_dtype(self._job, self._ranks.device)
        policy = MixedPrecisionPolicy()  # what travels is what is kept
        if dtype != torch.float32:
            # Autocast casts inputs where it pays, as without ranks.
            policy = MixedPrecisionPolicy(
                param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False
            )
        # Some models return views; we never change outputs in place.
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
        for block in (*self._compiled(model), model):
            fully_shard(block, mesh=self._mesh, mp_policy=policy)

    def slicing(self, network: nn.Module, *, last: bool) -> AbstractContextManager[object]:
        """See `Layout.slicing`."""
        cast("FSDPModule", network).set_requires_gradient_sync(last)
        return nullcontext()
