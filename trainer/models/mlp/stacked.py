"""Many MLPs of one architecture as one batched program, with the results of `network` for each model.

All weights of a model are one row of a (M, P) tensor, split into views here, so that optimizer and clipping
work on a single tensor.

Shapes: M models, T time steps, B batch, F features, P weights of one model, O outputs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch


class StackedMlp:
    """The forward pass of M models over stacked weights, and conversion from and to plain state
    dictionaries.
    """

    def __init__(
        self,
        *,
        features: int,
        lookback: int,
        hidden: int,
        layers: int,
        outputs: int = 1,
        matmul_dtype: torch.dtype | None,
    ) -> None:
        """Hidden layers have `matmul_dtype` (None: the weights' dtype), the head the weights' dtype."""
        self._layers, self._matmul_dtype = layers, matmul_dtype
        self.shapes: dict[str, tuple[int, ...]] = {}
        for layer in range(layers):
            self.shapes[f"hidden.{layer}.weight"] = (hidden, hidden if layer else lookback * features)
            self.shapes[f"hidden.{layer}.bias"] = (hidden,)
        self.shapes["head.weight"] = (outputs, hidden)
        self.shapes["head.bias"] = (outputs,)
        self._sizes = [math.prod(shape) for shape in self.shapes.values()]

    def forward(
        self,
        weights_MP: torch.Tensor,
        x_MTBF: torch.Tensor,
        keys_LM2: torch.Tensor | None = None,
        first_row: int = 0,
    ) -> torch.Tensor:
        """Return outputs (M, B, O) for scaled windows. There is no dropout."""
        dtype = self._matmul_dtype or weights_MP.dtype
        part = self._cut(weights_MP)
        hidden_MBH = x_MTBF.transpose(1, 2).flatten(2).to(dtype)
        for layer in range(self._layers):
            weight, bias = part[f"hidden.{layer}.weight"].to(dtype), part[f"hidden.{layer}.bias"].to(dtype)
            hidden_MBH = torch.baddbmm(bias.unsqueeze(1), hidden_MBH, weight.transpose(1, 2)).tanh()
        last_MBH = hidden_MBH.to(weights_MP.dtype)
        return torch.baddbmm(part["head.bias"].unsqueeze(1), last_MBH, part["head.weight"].transpose(1, 2))

    def flatten(self, state: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return one model's weights (P,) from its plain state dictionary."""
        return torch.cat([state[name].reshape(-1) for name in self.shapes])

    def unflatten(self, weights_P: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return one model's plain state dictionary, as views of its weights (P,)."""
        return {name: stacked[0] for name, stacked in self._cut(weights_P.unsqueeze(0)).items()}

    def _cut(self, weights_MP: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return each weight of all models by name."""
        # The gradient of one split is one concatenation.
        cut = weights_MP.split_with_sizes(self._sizes, dim=1)
        named = zip(self.shapes.items(), cut, strict=True)
        return {name: part.reshape(len(part), *shape) for (name, shape), part in named}
