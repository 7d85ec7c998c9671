"""The process group of the ranks of one model: `cpu:gloo,cuda:nccl` on GPUs, gloo on CPUs.

What the host decides travels over gloo, also on GPUs: it makes no GPU wait.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist

# DDP loads it. Where a group is there by then, its functions keep that as the default of an argument, and the group's threads
# outlive it: one that returns a tensor while the interpreter ends aborts the process (torch 2.13).
import torch.distributed.nn.functional

from trainer.errors import UsageError
from trainer.train.distributed.hanging import BOUND_SECONDS


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """The ranks of one model, as one of them sees them."""

    rank: int
    count: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        """Return whether this is rank 0, which speaks, writes and decides."""
        return self.rank == 0

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        """Add a tensor up over all ranks, in place; return it. The sum is the same on all of them, bit by bit."""
        dist.all_reduce(tensor)
        return tensor

    def numbers_of_first(self, numbers: Sequence[float]) -> list[float]:
        """Return rank 0's numbers, on every rank."""
        tensor = torch.tensor(numbers, dtype=torch.float64)
        dist.broadcast(tensor, src=0)
        return [float(number) for number in tensor.tolist()]

    def any(self, flag: bool) -> bool:
        """Return whether any rank's flag is set."""
        return bool(self.sum_(torch.tensor([int(flag)])).item())

    def most(self, number: float) -> float:
        """Return the largest of all ranks' numbers."""
        tensor = torch.tensor([number], dtype=torch.float64)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return float(tensor.item())

    def texts(self, text: str) -> list[str]:
        """Return every rank's text. torch's own way for objects pickles them on a wire that asks nobody for a password."""
        content = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.count)]
        dist.all_gather(sizes, torch.tensor([len(content)]))
        padded = torch.zeros(max(int(size) for size in sizes), dtype=torch.uint8)
        padded[: len(content)] = content
        gathered = [torch.empty_like(padded) for _ in range(self.count)]
        dist.all_gather(gathered, padded)
        return [bytes(part[: int(size)].tolist()).decode() for part, size in zip(gathered, sizes, strict=True)]

    def joined(self, rows: np.ndarray, counts: Sequence[int]) -> np.ndarray:
        """Return the rows (N, O) float64 of all ranks in the order of the ranks, of which rank r has `counts[r]`."""
        padded = torch.zeros(max(counts), rows.shape[1], dtype=torch.float64)
        padded[: len(rows)] = torch.from_numpy(rows)
        gathered = [torch.empty_like(padded) for _ in range(self.count)]
        dist.all_gather(gathered, padded)
        return torch.cat([part[:count] for part, count in zip(gathered, counts, strict=True)]).numpy()


def check_backend(kind: str) -> None:
    """Raise UsageError where this torch has no way between the devices."""
    if kind == "cuda" and not dist.is_nccl_available():
        raise UsageError(
            "this torch has no NCCL, through which GPUs exchange gradients",
            why=f"torch {torch.__version__} was built without it",
            do="Install a CUDA build of torch, or set train.distributed to never.",
        )
    if not (dist.is_available() and dist.is_gloo_available()):
        raise UsageError("this torch has no gloo", why="torch.distributed is left out of it", do="Install torch from PyPI.")


@contextmanager
def process_group(
    rank: int, count: int, device: torch.device, *, timeout: timedelta = timedelta(seconds=BOUND_SECONDS)
) -> Iterator[Ranks]:
    """Join the group that the environment of torchrun describes, while the `with` lasts.

    A rank that waits for the others for longer than `timeout` ends with an error (gloo) or is ended (NCCL's watchdog).
    """
    on_gpu = device.type == "cuda"
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
        rank=rank,
        world_size=count,
        timeout=timeout,
        device_id=device if on_gpu else None,
    )
    try:
        yield Ranks(rank=rank, count=count, device=device)
    finally:
        dist.destroy_process_group()
