"""Random numbers of training, all derived from (seed, purpose): weights, batch order, episodes and dropout of
one model.

No generator is shared between models, so a model's result does not depend on its pack or its worker. A user's
own module draws from torch's generators or its own: all are seeded again before each slice of a batch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from trainer.train.off_device import MOST_PUT_BYTES, put

KEYS_AHEAD = 128  # steps whose keys go to a device together, if one `put` has room


def derive(seed: int, *purpose: str | int) -> int:
    """Return a 64-bit number derived from seed and purpose, the same on every machine."""
    text = "\x1f".join(str(part) for part in (seed, *purpose))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def batch_order(num_windows: int, *, seed: int, model: str, epoch: int) -> torch.Tensor:
    """Return the order (num_windows,) int64 in which this epoch visits the training windows."""
    generator = torch.Generator().manual_seed(derive(seed, model, "order", epoch))
    return torch.randperm(num_windows, generator=generator)


@dataclass(frozen=True, kw_only=True)
class Episodes:
    """The visits of an agent: in each of `lanes`, `bars` bars in turn a rollout, in episodes of `length`."""

    lanes: int
    bars: int
    length: int


def episode_order(
    num_windows: int, episodes: Episodes, *, most: int, seed: int, model: str, epoch: int
) -> torch.Tensor:
    """Return the windows (most, 2) int64 that an agent visits in an epoch, each with the one after it.

    They are rollouts one after another, each lane by lane. An episode begins at a drawn window and takes the
    next ones in turn; the epoch's end cuts it short. The last window follows others, but is not acted on.
    """
    lanes, length = episodes.lanes, max(1, min(episodes.length, num_windows - 1))
    stream = most // lanes  # windows of a lane
    generator = torch.Generator().manual_seed(derive(seed, model, "episodes", epoch))
    drawn = (lanes, -(-stream // length), 1)
    firsts = torch.randint(max(1, num_windows - length), drawn, generator=generator)
    windows = (firsts + torch.arange(length)).view(lanes, -1)[:, :stream]
    order = windows.reshape(lanes, -1, episodes.bars).transpose(0, 1).reshape(-1)
    return torch.stack((order, (order + 1).clamp(max=num_windows - 1)), dim=1)


def dropout_keys(
    *, seed: int, model: str, steps: Iterable[int], layers: int, purpose: str = "dropout"
) -> torch.Tensor:
    """Return the keys (S, layers, 2) int32 of the dropout masks of optimizer steps, or of another purpose."""
    words = [[derive(seed, model, purpose, step, layer) for layer in range(layers)] for step in steps]
    halves = [[(word & 0xFFFFFFFF, word >> 32) for word in row] for row in words]
    return torch.tensor(halves, dtype=torch.int64).to(torch.int32).view(len(words), layers, 2)


class DropoutKeys:
    """The keys of a model's next optimizer steps, on its device, so that a step sends none.

    Shapes: S steps, L layers.
    """

    def __init__(self, table_SL2: torch.Tensor, *, seed: int, model: str, purpose: str = "dropout") -> None:
        self._purpose = purpose
        self._table_SL2, self._seed, self._model, self._first = table_SL2, seed, model, -1

    def place(self, step: int) -> int:
        """Return where in the table the keys of a step are; fill the table if they are not there yet."""
        steps, layers, _ = self._table_SL2.shape
        first = step - step % steps
        if first != self._first:
            ahead = range(first, first + steps)
            keys = dropout_keys(
                seed=self._seed, model=self._model, steps=ahead, layers=layers, purpose=self._purpose
            )
            put(self._table_SL2, keys)
            self._first = first
        return step - first

    def of(self, step: int) -> torch.Tensor:
        """Return the keys (L, 2) int32 of a step."""
        return self._table_SL2[self.place(step)]


def key_table(models: int, *, layers: int, device: torch.device) -> torch.Tensor:
    """Return a table (models, S, layers, 2) int32, of which each `DropoutKeys` fills a model's part."""
    steps = min(KEYS_AHEAD, max(1, MOST_PUT_BYTES // (8 * max(1, layers))))
    return torch.zeros(models, steps, layers, 2, dtype=torch.int32, device=device)


@contextmanager
def drawing(module: nn.Module, *, seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's generators and the module's own for the block; restore torch's after it."""
    gpus = []
    if device.type == "cuda":
        gpus = [torch.cuda.current_device() if device.index is None else device.index]
    with torch.random.fork_rng(devices=gpus):
        seed_generators(seed, gpus=gpus)
        for name, part in module.named_modules():
            for key, value in vars(part).items():
                if isinstance(value, torch.Generator):
                    value.manual_seed(derive(seed, name, key))
        yield


def seed_generators(seed: int, *, gpus: Iterable[int] = ()) -> None:
    """Seed torch's generators of the CPU and of these GPUs, as `torch.manual_seed` does.

    Without CUDA that function records a stack trace for later, which takes 2 ms: more than a small model's
    step.
    """
    torch.default_generator.manual_seed(seed)
    for gpu in gpus:
        torch.cuda.default_generators[gpu].manual_seed(seed)
