"""The temporal convolutional network: residual blocks of two dilated causal convolutions, then the outputs of
each bar.

Owns the architecture only; scaling, chunks, loss and training are in `trainer.train`. After Bai, Kolter and
Koltun 2018 (https://arxiv.org/abs/1803.01271): kernel 3, weight norm, ReLU, dropout of whole channels after
each convolution.

No convolution pads. A chunk includes the bars that its first output looks back on, and every layer computes
exactly what the next one needs. Causal by construction: an output is aligned with the last bar that it sees.

Shapes: B chunks, F features, C channels, X bars read, T bars of output: X = T + receptive_field - 1, O
outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm
from torch.nn.utils.parametrize import register_parametrization

from trainer.models.layers import in_full_precision, keep_mask, run
from trainer.models.tcn import CONVOLUTIONS, KERNEL


def build(architecture: dict[str, Any], *, recompute: bool = False) -> Tcn:
    """Build an untrained network. Its weights come from torch's global generator."""
    return Tcn(**architecture, recompute=recompute)


class Tcn(nn.Module):
    """The network: outputs for each bar of a chunk, from the bars up to it."""

    def __init__(
        self,
        *,
        features: int,
        width: int,
        dilations: Sequence[int],
        dropout: float,
        outputs: int = 1,
        recompute: bool = False,
    ) -> None:
        """`recompute`: compute each block's activations again in the backward pass, for less memory and more
        time.
        """
        super().__init__()
        self._recompute = recompute
        inputs = [features] + [width] * (len(dilations) - 1)
        self.blocks = nn.ModuleList(
            Block(inputs=before, width=width, dilation=dilation, dropout=dropout)
            for before, dilation in zip(inputs, dilations, strict=True)
        )
        self.head = nn.Conv1d(width, outputs, 1)

    @property
    def receptive_field(self) -> int:
        """Return how many bars an output sees, its own included."""
        return 1 + sum(block.reach for block in self.blocks)  # type: ignore[misc]

    def forward(
        self, x_BFX: torch.Tensor, keys_L2: torch.Tensor | None = None, first_row: int = 0
    ) -> torch.Tensor:
        """Return outputs (B, T, O) float32 for scaled bars (B, F, X); output t belongs to bar t +
        receptive_field - 1 of x.

        Dropout is on if `keys_L2` ((2 x blocks, 2) int32, a key for each convolution) is given; `first_row`
        is the position of x's first chunk in its batch.
        """
        hidden_BCX = x_BFX
        for number, block in enumerate(self.blocks):
            first = CONVOLUTIONS * number
            keys = None if keys_L2 is None else keys_L2[first : first + CONVOLUTIONS]
            hidden_BCX = run(block, hidden_BCX, keys, first_row, recompute=self._recompute)
        return in_full_precision(self.head, hidden_BCX).transpose(1, 2)


def _normed(convolution: nn.Conv1d) -> nn.Module:
    """Return the convolution with weight norm. On the meta device, which has only shapes, no norm is
    computed.
    """
    if not convolution.weight.is_meta:
        normed: nn.Module = weight_norm(convolution)
        return normed
    register_parametrization(convolution, "weight", _ShapesOfNorm(), unsafe=True)
    return convolution


class _ShapesOfNorm(nn.Module):
    """The shapes of weight norm's tensors. torch's own loads sympy on the meta device, for 5 s (torch 2.13,
    2026-11-22).
    """

    def forward(self, length: torch.Tensor, direction: torch.Tensor) -> torch.Tensor:
        return direction

    def right_inverse(self, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return weight.new_empty(weight.shape[0], *(1 for _ in weight.shape[1:])), weight


class Block(nn.Module):
    """Two convolutions with a residual connection."""

    def __init__(self, *, inputs: int, width: int, dilation: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.reach = CONVOLUTIONS * (KERNEL - 1) * dilation
        self.first = _normed(nn.Conv1d(inputs, width, KERNEL, dilation=dilation))
        self.second = _normed(nn.Conv1d(width, width, KERNEL, dilation=dilation))
        self.straight = nn.Conv1d(inputs, width, 1) if inputs != width else nn.Identity()

    def forward(
        self, x_BCX: torch.Tensor, keys_L2: torch.Tensor | None = None, first_row: int = 0
    ) -> torch.Tensor:
        """Return (B, C, X - reach): each output sees its own bar and the `reach` bars before."""
        hidden_BCX = x_BCX
        for number, convolution in enumerate((self.first, self.second)):
            hidden_BCX = torch.relu(convolution(hidden_BCX))
            if keys_L2 is not None and self.dropout > 0:
                kept_BC1 = self._kept(hidden_BCX, keys_L2[number : number + 1], first_row)
                hidden_BCX = hidden_BCX * kept_BC1 * (1 / (1 - self.dropout))
        return torch.relu(hidden_BCX + self.straight(x_BCX[:, :, self.reach :]))

    def _kept(self, hidden_BCX: torch.Tensor, key_12: torch.Tensor, first_row: int) -> torch.Tensor:
        """Return (B, C, 1): False for channels dropped from a whole chunk. A factor in float32 would take the
        rest of the network to it.
        """
        rows, channels, _ = hidden_BCX.shape
        keep = keep_mask(
            key_12, first_row=first_row, shape_TBH=(1, rows, channels), probability=1 - self.dropout
        )
        return keep[0, 0, :, :, None]
