"""The line between a worker and one of its helpers: objects through a pipe, arrays and tensors as raw bytes.

Objects are pickled, as `multiprocessing` does: both ends are processes of one training, and nobody else has
the pipe. No shared memory is used: a container may have 64 MiB of it.
"""

from __future__ import annotations

import io
import os
import pickle
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch


class Line:
    """One end. Each message is received whole before the next."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def send(self, value: Any) -> None:
        """Send an object. Tensors must be on the CPU; those that share memory share it there, too."""
        buffers: list[pickle.PickleBuffer] = []
        content = io.BytesIO()
        _Pickler(content, buffers).dump(value)
        parts = [buffer.raw() for buffer in buffers]
        self._connection.send_bytes(pickle.dumps((content.getvalue(), [len(part) for part in parts])))
        for part in parts:
            while part:
                part = part[os.write(self._connection.fileno(), part) :]

    def receive(self) -> Any:
        """Wait for an object and return it. Raises EOFError when the other process has ended."""
        content, sizes = pickle.loads(self._connection.recv_bytes())
        buffers = [np.empty(size, dtype=np.uint8) for size in sizes]
        for buffer in buffers:
            left = buffer.data
            while left:
                read = os.readv(self._connection.fileno(), [left])
                if not read:
                    raise EOFError
                left = left[read:]
        return pickle.loads(content, buffers=buffers)


class _Pickler(pickle.Pickler):
    """Pickles a tensor as a view of its memory's array."""

    def __init__(self, file: io.BytesIO, buffers: list[pickle.PickleBuffer]) -> None:
        super().__init__(file, protocol=5, buffer_callback=buffers.append)
        self._arrays: dict[object, np.ndarray] = {}

    def reducer_override(self, value: Any) -> Any:
        if type(value) is not torch.Tensor:
            return NotImplemented
        memory = value.untyped_storage()
        whole = torch.empty(0, dtype=torch.uint8).set_(memory)
        # One array for each memory, so that the pickle has it once. Empty ones have no address.
        array = self._arrays.setdefault(memory.data_ptr() or ("empty", id(value)), whole.numpy())
        return _tensor, (array, value.dtype, value.storage_offset(), tuple(value.shape), value.stride())


def _tensor(
    array: np.ndarray, dtype: torch.dtype, offset: int, shape: tuple[int, ...], stride: tuple[int, ...]
) -> torch.Tensor:
    memory = torch.from_numpy(array).untyped_storage()
    return torch.empty(0, dtype=dtype).set_(memory, offset, shape, stride)
