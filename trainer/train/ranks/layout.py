"""DDP as a pack's layout: each rank takes its share of every batch; gradients are summed during backward.

DDP divides the sum of gradients by the number of ranks; `weight` undoes that. Each rank's loss is already
divided by the number of labels in the whole batch, so the sum over ranks is the batch's mean even if the
ranks' shares differ.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from trainer.base.errors import UsageError
from trainer.job.job import Job
from trainer.train.machine_file import MachineFacts
from trainer.train.precision import matmul_dtype
from trainer.train.ranks.blocks import blocks_of
from trainer.train.ranks.group import Ranks
from trainer.train.ranks.sharing import share


class SharedBatch:
    """Base of the layouts of ranks: the rows of a batch that a rank takes."""

    def __init__(self, ranks: Ranks, *, compiles: bool = False) -> None:
        """`compiles`: compile each block of the model."""
        self._ranks, self._compiles = ranks, compiles

    @property
    def weight(self) -> float:
        """See `packs.layout.Layout.weight`: DDP and FSDP2 divide the sum of gradients by the number
        of ranks.
        """
        return float(self._ranks.count)

    def part(self, rows: int) -> range:
        """See `packs.layout.Layout.part`."""
        return share(rows, rank=self._ranks.rank, ranks=self._ranks.count)


class DataParallel(SharedBatch):
    """A layout by DDP; every rank has the whole model."""

    divides = False

    def __init__(self, ranks: Ranks, *, compress: bool = False, compiles: bool = False) -> None:
        """`compress`: send gradients as bf16, half the bytes; `compiles` as in `SharedBatch`."""
        super().__init__(ranks, compiles=compiles)
        self._compress = compress

    def least_slices(self, rows: int, micro_batch: int) -> int:
        """See `packs.layout.Layout.least_slices`."""
        return 1

    def divide(self, model: nn.Module, *, is_any_module: bool) -> None:
        """See `packs.layout.Layout.divide`."""

    def wrap(self, model: nn.Module, *, slices: int, is_any_module: bool) -> nn.Module:
        """See `packs.layout.Layout.wrap`. Raises UsageError for batch norm on CPUs.

        A static graph needs one backward per step (with `no_sync` torch aborts in `expect_autograd_hooks_`)
        and the same weights in every batch, which a user's own module does not guarantee.
        """
        on_gpu = self._ranks.device.type == "cuda"
        if has_batch_norm(model):
            if not on_gpu:
                raise UsageError(
                    "batch norm on several CPU ranks",
                    why="torch synchronizes its statistics on GPUs only, so each rank would have its own",
                    do="Set train.distributed to never, or use layer or group norm.",
                )
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
        if self._compiles:
            for block in blocks_of(
                model
            ):  # blocks share one compiled code, which takes a fraction of the model's time
                block.compile()
        wrapped = DistributedDataParallel(
            model,
            device_ids=[self._ranks.device.index] if on_gpu else None,
            gradient_as_bucket_view=True,
            static_graph=slices <= 1 and not is_any_module,
            find_unused_parameters=is_any_module,
            forward_sync_buffers=is_any_module,
        )
        if self._compress:
            wrapped.register_comm_hook(None, bf16_compress_hook)
        return wrapped

    def slicing(self, network: nn.Module, *, last: bool) -> AbstractContextManager[object]:
        """See `packs.layout.Layout.slicing`."""
        assert isinstance(network, DistributedDataParallel)
        return nullcontext() if last else network.no_sync()


def data_parallel(ranks: Ranks, job: Job, machine: MachineFacts) -> DataParallel:
    """Return the DDP layout for a job on a machine.

    Gradients are compressed if PCIe connects the GPUs and the job multiplies in half precision anyway; over
    NVLink the casts cost more than the bytes. Only with NCCL: torch's hook refuses gloo.
    """
    on_gpu = ranks.device.type == "cuda"
    is_half = matmul_dtype(job, ranks.device) != torch.float32
    return DataParallel(
        ranks, compress=on_gpu and is_half and machine.link == "PCIe", compiles=compiles(job, on_gpu=on_gpu)
    )


def compiles(job: Job, *, on_gpu: bool) -> bool:
    """Return whether to compile blocks; a user's own module only if the job says so."""
    if job.expert.compile != "auto":
        return job.expert.compile == "always"
    return on_gpu and not job.model.is_any_module


def has_batch_norm(model: nn.Module) -> bool:
    """Return whether a module has batch norm of any dimension."""
    return any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())
