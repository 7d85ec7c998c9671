"""Random numbers of training, all derived from (seed, purpose): weights, batch order and dropout of one
model.

No generator is shared between models, so a model's result does not depend on its pack or its worker. A user's
own module draws from torch's generators or its own: all are seeded again before each slice of a batch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn


def derive(seed: int, *purpose: str | int) -> int:
    """Return a 64-bit number derived from seed and purpose, the same on every machine."""
    text = "\x1f".join(str(part) for part in (seed, *purpose))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def batch_order(num_windows: int, *, seed: int, model: str, epoch: int) -> torch.Tensor:
    """Return the order (num_windows,) int64 in which this epoch visits the training windows."""
    generator = torch.Generator().manual_seed(derive(seed, model, "order", epoch))
    return torch.randperm(num_windows, generator=generator)


def dropout_keys(*, seed: int, model: str, step: int, layers: int) -> torch.Tensor:
    """Return the keys (layers, 2) int32 of one optimizer step's dropout masks."""
    words = [derive(seed, model, "dropout", step, layer) for layer in range(layers)]
    halves = [[word & 0xFFFFFFFF, word >> 32] for word in words]
    return torch.tensor(halves, dtype=torch.int64).to(torch.int32)


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
