"""Limit the memory of the tensors that a user's class creates, since its settings may come from an untrusted
card.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

FREE_BYTES = 1 << 30  # for tensors besides the weights, such as masks
MOST_TIMES = 16  # multiple of the file's bytes: each tensor is created, filled and perhaps copied


def most_bytes(tensors: Mapping[str, torch.Tensor]) -> int:
    """Return the limit, in bytes, of all tensors created while a network with these weights is built."""
    return FREE_BYTES + MOST_TIMES * sum(tensor.nbytes for tensor in tensors.values())


class TensorLimit(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own
    """Raise MemoryError before an operation that would bring the bytes of all tensors created so far above
    `most`.

    Each operation is tried on the meta device first, where tensors take no memory. One that can't run there,
    because it needs values, counts as 0 bytes.
    """

    def __init__(self, most: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.most, self.made = most, 0

    @property
    def is_exceeded(self) -> bool:
        return self.made > self.most

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        self.made += _bytes_of(func, args, named)
        if self.is_exceeded:
            raise MemoryError(f"its tensors take more than {self.most:,} bytes")
        return func(*args, **named)


def _bytes_of(func: Any, args: Any, named: Mapping[str, Any]) -> int:
    """Return the bytes of an operation's results; 0 if it changes a tensor in place."""
    if func._schema.is_mutable:
        return 0
    # A generator is refused unless it is on meta.
    given = {key: None if key == "generator" else value for key, value in named.items()}
    if any(one.name == "device" for one in func._schema.arguments):
        given["device"] = torch.device("meta")
    try:
        args, given = tree_map_only(torch.Tensor, lambda tensor: tensor.to("meta"), (args, given))
        made = func(*args, **given)
    except Exception:  # operations that meta lacks raise errors of many classes
        return 0
    return sum(one.nbytes for one in tree_leaves(made) if isinstance(one, torch.Tensor))
