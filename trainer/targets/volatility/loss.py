"""The loss of volatility: the squared error of the scaled log."""

from __future__ import annotations

import torch

from trainer.targets.volatility import Volatility


def loss(target: Volatility, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the loss (...) of each label: outputs (..., 1), labels (..., 1)."""
    return (outputs - labels).squeeze(-1).square()
