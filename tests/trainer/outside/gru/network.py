"""The GRU itself."""

from __future__ import annotations

import torch
from torch import nn


def build(architecture: dict[str, int], *, recompute: bool = False) -> nn.Module:
    return Gru(**architecture)


class Gru(nn.Module):
    def __init__(self, *, features: int, outputs: int, cells: int) -> None:
        super().__init__()
        self.gru, self.head = nn.GRU(features, cells), nn.Linear(cells, outputs)

    def forward(
        self, x_TBF: torch.Tensor, keys_L2: torch.Tensor | None = None, first_row: int = 0
    ) -> torch.Tensor:
        return self.head(self.gru(x_TBF)[0][-1])
