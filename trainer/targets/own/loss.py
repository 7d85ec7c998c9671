"""The loss of a user's own target."""

from __future__ import annotations

import torch

from trainer.base.own_file import instance_of
from trainer.targets.own import OwnTarget


def loss(target: OwnTarget, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the loss (...) of each label: outputs (..., O), labels (..., K)."""
    losses: torch.Tensor = instance_of(target).loss(outputs, labels)
    return losses
