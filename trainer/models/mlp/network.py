"""The MLP: the bars of a window side by side, hidden layers with tanh, and a linear head.

Owns the architecture only; scaling, windows, loss and training are in `trainer.train`.

Shapes: T time steps, B batch, F features, O outputs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from trainer.models.layers import in_full_precision
from trainer.models.mlp.stacked import StackedMlp


def build(architecture: dict[str, Any], *, recompute: bool = False) -> Mlp:
    """Build an untrained network. Its weights come from torch's global generator. It has few activations, so
    `recompute` changes nothing.
    """
    return Mlp(**architecture)


def stacked(
    architecture: dict[str, Any], *, recompute: bool = False, matmul_dtype: torch.dtype | None = None
) -> StackedMlp:
    """Return the same architecture as one program over the stacked weights of many networks."""
    return StackedMlp(**architecture, matmul_dtype=matmul_dtype)


class Mlp(nn.Module):
    """The network: outputs for a window of bars."""

    def __init__(self, *, features: int, lookback: int, hidden: int, layers: int, outputs: int = 1) -> None:
        super().__init__()
        self.hidden = nn.ModuleList(
            nn.Linear(hidden if layer else lookback * features, hidden) for layer in range(layers)
        )
        self.head = nn.Linear(hidden, outputs)

    def forward(
        self, x_TBF: torch.Tensor, keys_L2: torch.Tensor | None = None, first_row: int = 0
    ) -> torch.Tensor:
        """Return outputs (B, O) float32 for scaled windows (T, B, F) float32. There is no dropout."""
        hidden = x_TBF.transpose(0, 1).flatten(1)
        for layer in self.hidden:
            hidden = layer(hidden).tanh()
        return in_full_precision(self.head, hidden)
