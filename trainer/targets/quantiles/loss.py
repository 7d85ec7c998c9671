"""The loss of quantiles: the pinball loss, summed over the three levels."""

from __future__ import annotations

import torch

from trainer.targets.quantiles import Quantiles


def loss(target: Quantiles, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the loss (...) of each label: outputs (..., 3), labels (..., 1)."""
    missed = labels - outputs
    low, middle, high = missed.unbind(-1)
    each = (
        torch.maximum(level * part, (level - 1) * part)
        for level, part in zip(target.levels, (low, middle, high), strict=True)
    )
    return torch.stack(list(each), dim=-1).sum(-1)
