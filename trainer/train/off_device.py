"""Copies between host and device. Only here does a copy return before it is done.

    put         to a device: a step's inputs
    send        to a device, from pinned memory: an epoch's order
    read        off a device, by one copy for which the host waits: outputs of a validation
    contents    off a device: a checkpoint's tensors, through a ring of pinned buffers and a side stream

Training copies its state on the device, by its own stream, and steps on. The side stream waits for that copy,
and training never waits for the side stream. While a buffer is written to the disk, the next is filled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import cycle, groupby
from typing import Protocol

import numpy as np
import torch

BUFFERS, BUFFER_BYTES = 3, 16 << 20  # of pinned memory, in each process that writes checkpoints
MOST_PUT_BYTES = 64 << 10  # that a driver takes from pageable memory without waiting for the device


def put(into: torch.Tensor, values: torch.Tensor) -> None:
    """Copy values to a device. Those of the host are pageable and may be freed at once: the driver has copied
    them when the call returns. Raises ValueError for so many that it would wait for the device first.

    "Implicit Synchronization" in https://docs.nvidia.com/cuda/cuda-c-programming-guide/, and
    https://docs.nvidia.com/cuda/cuda-runtime-api/api-sync-behavior.html (2026-11-21)
    """
    if values.device.type == "cpu" != into.device.type and values.nbytes > MOST_PUT_BYTES:
        raise ValueError(f"{values.nbytes:,} bytes of the host make a step wait: at most {MOST_PUT_BYTES:,}")
    into.copy_(values, non_blocking=True)


def send(values: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return values of the host on a device. The copy may still be under way. Raises ValueError for pageable
    ones, for which a GPU would make the host wait.
    """
    if device.type == "cuda" and not values.is_pinned():
        raise ValueError("only pinned memory is sent without a wait")
    return values.to(device, non_blocking=True)


def read(tensors: Sequence[torch.Tensor]) -> list[np.ndarray]:
    """Return tensors of a device as float64 on the host. The host waits once for all of them."""
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors]).cpu().double()
    parts = flat.split_with_sizes([tensor.numel() for tensor in tensors])
    return [part.view(tensor.shape).numpy() for part, tensor in zip(parts, tensors, strict=True)]


def contents(tensors: Iterable[torch.Tensor]) -> Iterator[memoryview]:
    """Yield the bytes of tensors, one after another and in pieces; each is good until the next is asked for.

    The tensors must stay as they are until the end. Call it from one thread of a process at a time.
    """
    for device, group in groupby(tensors, key=lambda tensor: tensor.device):
        if device.type == "cuda":
            yield from _ring_of(device).contents(group)
        else:
            for tensor in group:
                yield _flat(tensor).cpu().numpy().data


class Lane(Protocol):
    """A device's way to the host, beside its training."""

    def buffer(self, size: int) -> torch.Tensor:
        """Return a buffer of the host (size,) uint8 that the device can write to by itself."""

    def follow(self) -> None:
        """Have the copies that begin from now on wait for what the training has queued until now."""

    def flat(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the bytes of a tensor, (N,) uint8 on its device."""

    def begin(self, into: torch.Tensor, source: torch.Tensor) -> Callable[[], object]:
        """Begin a copy; return the function that waits for its end."""


class CudaLane:
    """A stream of a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._stream = device, torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def buffer(self, size: int) -> torch.Tensor:
        """See `Lane.buffer`."""
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)

    def follow(self) -> None:
        """See `Lane.follow`. Training runs on the device's default stream."""
        self._stream.wait_stream(torch.cuda.default_stream(self._device))

    def flat(self, tensor: torch.Tensor) -> torch.Tensor:
        """See `Lane.flat`."""
        with self._current():  # it may have to be made contiguous
            return _flat(tensor)

    def begin(self, into: torch.Tensor, source: torch.Tensor) -> Callable[[], object]:
        """See `Lane.begin`."""
        # Blocking: the thread that waits leaves its core to others.
        done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        with self._current():
            into.copy_(source, non_blocking=True)
            done.record(self._stream)
        return done.synchronize

    @contextmanager
    def _current(self) -> Iterator[None]:
        """Make the stream the current one for the block."""
        # And its device: a thread begins on the first GPU, and to go back to a stream there makes a CUDA
        # context, half a GiB of another worker's memory (`StreamContext.__exit__`, torch 2.13).
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            yield


class Ring:
    """Buffers of the host that a lane fills in turn."""

    def __init__(self, lane: Lane, *, buffers: int = BUFFERS, buffer_bytes: int = BUFFER_BYTES) -> None:
        self._lane, self._bytes = lane, buffer_bytes
        self._buffers = [lane.buffer(buffer_bytes) for _ in range(buffers)]

    def contents(self, tensors: Iterable[torch.Tensor]) -> Iterator[memoryview]:
        """See `contents`."""
        self._lane.follow()
        filling: deque[tuple[Callable[[], object], torch.Tensor]] = deque()
        for piece, buffer in zip(self._pieces(tensors), cycle(self._buffers)):  # noqa: B905, the ring has no end
            if len(filling) == len(self._buffers):
                yield self._oldest(filling)
            into = buffer[: len(piece)]
            filling.append((self._lane.begin(into, piece), into))
        while filling:
            yield self._oldest(filling)

    def _pieces(self, tensors: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
        for tensor in tensors:
            flat = self._lane.flat(tensor)
            for first in range(0, len(flat), self._bytes):
                yield flat[first : first + self._bytes]

    def _oldest(self, filling: deque[tuple[Callable[[], object], torch.Tensor]]) -> memoryview:
        wait, buffer = filling.popleft()
        wait()
        return buffer.numpy().data


@cache
def _ring_of(device: torch.device) -> Ring:
    return Ring(CudaLane(device))


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().view(-1).view(torch.uint8)  # numpy has no bf16
