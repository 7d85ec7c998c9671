"""The loss of barrier: the cross entropy of three classes."""

from __future__ import annotations

import torch

from trainer.targets.barrier import Barrier


def loss(target: Barrier, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the loss (...) of each label: outputs (..., 3), labels (..., 1) of 0, 1 and 2."""
    return (outputs.logsumexp(-1, keepdim=True) - outputs.gather(-1, labels.long())).squeeze(-1)
