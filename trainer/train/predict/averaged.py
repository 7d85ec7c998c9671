"""A model of several networks: its forecast is the mean of theirs.

The target combines their outputs (`TargetSettings.combined`), so that readers, calibration and scores treat
it as any network. In a file its weights are named `members.<number>.<name of the weight>`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from trainer.targets.target import TargetSettings


class Averaged(nn.Module):
    """Networks of one shape, and the target that combines their outputs (M, ..., O)."""

    def __init__(self, members: Sequence[nn.Module], target: TargetSettings) -> None:
        super().__init__()
        self.members, self._target = nn.ModuleList(members), target

    def forward(self, *inputs: torch.Tensor, **context: torch.Tensor) -> torch.Tensor:
        """Return the combined outputs (..., O)."""
        return self._target.combined(torch.stack([member(*inputs, **context) for member in self.members]))


def averaged_tensors(members: Sequence[Mapping[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Return the tensors of a model of these networks: those of its only one, or of all by number."""
    if len(members) == 1:
        return dict(members[0])
    each = enumerate(members)
    return {f"members.{number}.{name}": one for number, named in each for name, one in named.items()}


def built(make: Any, members: int, target: TargetSettings) -> nn.Module:
    """Return a network that `make` builds, or so many of them, averaged."""
    if members == 1:
        network: nn.Module = make()
        return network
    return Averaged([make() for _ in range(members)], target)
