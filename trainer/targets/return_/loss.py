"""The loss of a return: the squared error."""

from __future__ import annotations

import torch

from trainer.targets.return_ import Return


def loss(target: Return, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the loss (...) of each label: outputs (..., 1), labels (..., 1)."""
    return (outputs - labels).squeeze(-1).square()
