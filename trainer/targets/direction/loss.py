"""The loss of direction: the cross entropy of one logit."""

from __future__ import annotations

import torch

from trainer.targets.direction import Direction


def loss(target: Direction, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the loss (...) of each label: outputs (..., 1), labels (..., 1) of 0 and 1."""
    return torch.nn.functional.binary_cross_entropy_with_logits(
        outputs.squeeze(-1), labels.squeeze(-1), reduction="none"
    )
