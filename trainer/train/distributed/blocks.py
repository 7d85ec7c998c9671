"""The blocks of a model: what repeats in it, and is compiled, or gathered, one at a time."""

from __future__ import annotations

from torch import nn


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """Return the blocks of a model: the members of its module lists that have weights."""
    lists = (module for module in model.modules() if isinstance(module, nn.ModuleList))
    return [block for blocks in lists for block in blocks if any(True for _ in block.parameters())]
