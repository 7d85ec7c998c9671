"""The blocks of a model: its repeated parts, which are compiled or gathered one at a time."""

from __future__ import annotations

from torch import nn


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """Return the members of a model's module lists that have weights."""
    lists = (module for module in model.modules() if isinstance(module, nn.ModuleList))
    return [block for blocks in lists for block in blocks if any(True for _ in block.parameters())]
