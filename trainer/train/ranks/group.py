"""The process group of the ranks of one model: `cpu:gloo,cuda:nccl` on GPUs, gloo on CPUs.

Decisions of the host are exchanged over gloo even with GPUs, so that no GPU waits.
"""

from __future__ import annotations

import gc
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist

# Imported before a group exists. DDP would import it later, and its functions would then keep the group as a
# default argument, so that the group's threads outlive it: one that returns a tensor while the interpreter
# exits aborts the process (torch 2.13).
import torch.distributed.nn.functional

from trainer.train.notice import STOP, WORDS, Heard


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """The ranks of one model, seen from one of them. Every rank must call the same methods in the
    same order.
    """

    rank: int
    count: int
    device: torch.device
    group: dist.ProcessGroup | None = None  # None: the default one
    nodes: int = 1  # machines, each with as many ranks

    def in_background(self) -> Ranks:
        """Return the same ranks with a gloo group of their own, for another thread: its collectives may run
        during the training's.
        """
        return replace(self, group=dist.new_group(backend="gloo", timeout=TIMEOUT))

    @property
    def per_node(self) -> int:
        """Return the number of ranks of each machine."""
        return self.count // self.nodes

    @property
    def writes(self) -> bool:
        """Return whether this rank is on the first machine, whose disk has the checkpoints."""
        return self.rank < self.per_node

    @property
    def is_first(self) -> bool:
        """Return whether this is rank 0, which reports, writes and decides."""
        return self.rank == 0

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum a tensor over all ranks, in place; return it. The sum is bit-identical on all of them."""
        dist.all_reduce(tensor, group=self.group)
        return tensor

    def numbers_of_first(self, numbers: Sequence[float]) -> list[float]:
        """Return rank 0's numbers, on every rank."""
        tensor = torch.tensor(numbers, dtype=torch.float64)
        dist.broadcast(tensor, src=0, group=self.group)
        return [float(number) for number in tensor.tolist()]

    def from_first(self, tensor: torch.Tensor) -> torch.Tensor:
        """Fill a contiguous tensor with rank 0's, in place; return it."""
        dist.broadcast(tensor, src=0, group=self.group)
        return tensor

    def any(self, flag: bool) -> bool:
        """Return whether any rank's flag is set."""
        return bool(self.sum_(torch.tensor([int(flag)])).item())

    def most(self, number: float) -> float:
        """Return the largest of all ranks' numbers."""
        tensor = torch.tensor([number], dtype=torch.float64)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=self.group)
        return float(tensor.item())

    def texts(self, text: str) -> list[str]:
        """Return every rank's text, by rank. torch's own exchange of objects would unpickle them from an open
        connection.
        """
        content = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.count)]
        dist.all_gather(sizes, torch.tensor([len(content)]), group=self.group)
        padded = torch.zeros(max(int(size) for size in sizes), dtype=torch.uint8)
        padded[: len(content)] = content
        gathered = [torch.empty_like(padded) for _ in range(self.count)]
        dist.all_gather(gathered, padded, group=self.group)
        return [
            bytes(part[: int(size)].tolist()).decode() for part, size in zip(gathered, sizes, strict=True)
        ]

    def joined(self, rows: np.ndarray, counts: Sequence[int]) -> np.ndarray:
        """Return the rows (N, O) float64 of all ranks, concatenated in the order of ranks; rank r has
        `counts[r]` of them.
        """
        padded = torch.zeros(max(counts), rows.shape[1], dtype=torch.float64)
        padded[: len(rows)] = torch.from_numpy(rows)
        gathered = [torch.empty_like(padded) for _ in range(self.count)]
        dist.all_gather(gathered, padded, group=self.group)
        return torch.cat([part[:count] for part, count in zip(gathered, counts, strict=True)]).numpy()


TIMEOUT = timedelta(minutes=10)  # of a collective: rank 0 alone writes a model meanwhile
SECONDS = 0.5  # between agreements on the time, approximately
MOST_READINGS = 256


class AgreedClock:
    """A clock that all ranks share: rank 0's time, which advances only when they agree on it.

    Every rank must read it equally often. Ranks that read the same time make the same decisions by time
    (progress reports, checkpoints). Rank 0 also sends the number of readings until the next agreement, so
    that there are about two a second at any speed of the steps, what it has heard, and its seconds between
    checkpoints.
    """

    def __init__(
        self,
        ranks: Ranks,
        *,
        clock: Callable[[], float] = time.monotonic,
        notice: Heard = lambda: "",
        interval: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._ranks, self._clock, self._notice, self._interval = ranks, clock, notice, interval
        self._word = ""
        self._agree(readings=1)

    def __call__(self) -> float:
        """Return the time of the last agreement, in seconds."""
        if self._left == 0:
            elapsed = self._clock() - self._now  # only rank 0's counts
            self._agree(readings=readings_until_next(self._readings, elapsed))
        self._left -= 1
        return self._now

    def heard(self) -> str:
        """Return what rank 0 had heard at the last agreement, as a `Notice` does."""
        word = self._word
        if word != STOP:
            self._word = ""
        return word

    def interval(self) -> float:
        """Return the seconds between checkpoints that rank 0 had at the last agreement."""
        return self._seconds

    def _agree(self, *, readings: int) -> None:
        word = self._notice() if self._ranks.is_first else ""
        numbers = [self._clock(), readings, WORDS.index(word), self._interval()]
        self._now, agreed, heard, self._seconds = self._ranks.numbers_of_first(numbers)
        self._readings = self._left = int(agreed)
        self._word = WORDS[int(heard)] or self._word


def readings_until_next(readings: int, elapsed: float) -> int:
    """Return the readings until the next agreement, if the last `readings` took `elapsed` seconds."""
    return max(1, min(MOST_READINGS, 2 * readings, round(readings * SECONDS / max(elapsed, 1e-9))))


def share(count: int, *, rank: int, ranks: int) -> range:
    """Return which of `count` items a rank takes: consecutive, as many as the others or one less; none if
    there are fewer items than ranks.
    """
    return range(count * rank // ranks, count * (rank + 1) // ranks)


@contextmanager
def process_group(rank: int, count: int, device: torch.device, *, nodes: int) -> Iterator[Ranks]:
    """Join the process group that torchrun's environment describes, inside the `with` block.

    A rank that waits for the others longer than TIMEOUT fails with an error (gloo) or is killed (NCCL's
    watchdog). Networks inside the `with` go before the group: a reducer of DDP that goes last ends the
    group's thread while it holds the GIL, which that thread may wait for (torch 2.13, gloo, seen 2026-11-23).
    """
    on_gpu = device.type == "cuda"
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
        rank=rank,
        world_size=count,
        timeout=TIMEOUT,
        device_id=device if on_gpu else None,
    )
    try:
        yield Ranks(rank=rank, count=count, device=device, nodes=nodes)
    except BaseException as error:  # broad on purpose: any traceback keeps the frames that hold networks
        traceback.clear_frames(error.__traceback__)
        raise
    finally:
        gc.collect()  # of networks in cycles
        dist.destroy_process_group()
