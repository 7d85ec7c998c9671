"""The temporal convolutional network: residual blocks of two dilated causal convolutions, then the outputs of
each bar.

Owns the architecture only; scaling, chunks, loss and training are in `trainer.train`. After Bai, Kolter and
Koltun 2018 (https://arxiv.org/abs/1803.01271): kernel 3, weight norm, ReLU, dropout of whole channels after
each convolution.

No convolution pads. A chunk includes the bars that its first output looks back on, and every layer computes
exactly what the next one needs; of a chunk with one output, only the bars that this output depends on, which
lie as far apart as the dilations of the blocks above. Causal by construction: an output is aligned with the
last bar that it sees.

Shapes: B chunks, F features, C channels, X bars read, T bars of output: X = T + receptive_field - 1, O
outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
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
        # Of each block, how many bars lie between those that one output depends on
        self._apart = [gcd(*dilations[number:]) for number in range(len(dilations))]

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
        has_one_output, apart = x_BFX.shape[2] == self.receptive_field, 1
        # On a GPU, and for one output, a bar's channels lie side by side.
        hidden_BCX = x_BFX.mT.contiguous().mT if x_BFX.is_cuda or has_one_output else x_BFX
        for number, block in enumerate(self.blocks):
            if has_one_output and self._apart[number] > apart:
                hidden_BCX = hidden_BCX[:, :, :: self._apart[number] // apart]
                apart = self._apart[number]
            first = CONVOLUTIONS * number
            keys = None if keys_L2 is None else keys_L2[first : first + CONVOLUTIONS]
            hidden_BCX = run(block, hidden_BCX, keys, first_row, apart, recompute=self._recompute)
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
        self, x_BCX: torch.Tensor, keys_L2: torch.Tensor | None = None, first_row: int = 0, apart: int = 1
    ) -> torch.Tensor:
        """Return (B, C, X - reach / apart): each output sees its own bar and the `reach` bars before, of
        which x has every `apart`-th.
        """
        hidden_BCX = x_BCX
        for number, convolution in enumerate((self.first, self.second)):
            hidden_BCX = torch.relu(convolved(convolution, hidden_BCX, apart))
            if keys_L2 is not None and self.dropout > 0:
                kept_BC1 = self._kept(hidden_BCX, keys_L2[number : number + 1], first_row)
                hidden_BCX = hidden_BCX * kept_BC1 * (1 / (1 - self.dropout))
        straight_BCX = x_BCX[:, :, self.reach // apart :]
        if isinstance(self.straight, nn.Conv1d):
            straight_BCX = convolved(self.straight, straight_BCX)
        return torch.relu(hidden_BCX + straight_BCX)

    def _kept(self, hidden_BCX: torch.Tensor, key_12: torch.Tensor, first_row: int) -> torch.Tensor:
        """Return (B, C, 1): False for channels dropped from a whole chunk. A factor in float32 would take the
        rest of the network to it.
        """
        rows, channels, _ = hidden_BCX.shape
        keep = keep_mask(
            key_12, first_row=first_row, shape_TBH=(1, rows, channels), probability=1 - self.dropout
        )
        return keep[0, 0, :, :, None]


def convolved(convolution: nn.Module, x_BCX: torch.Tensor, apart: int = 1) -> torch.Tensor:
    """Return the output (B, O, X - reach / apart) of a convolution over every `apart`-th bar, on a GPU by
    matrix products, in autocast's dtype. The output's channels lie side by side if those of x do.

    cuDNN has no tensor cores for a dilation: with 512 channels of 1,024 bars in 64 chunks its forward and
    backward pass took an H200 4.4 ms at a dilation of 8 and 8.0 ms at 32, products 1.1 and 0.9 ms
    (2026-11-27).
    """
    assert isinstance(convolution, nn.Conv1d)
    dilation = max(1, convolution.dilation[0] // apart)  # a kernel of one bar has none
    weight_OCK = convolution.weight
    if not x_BCX.is_cuda and x_BCX.stride(1) > 1:
        return nn.functional.conv1d(x_BCX, weight_OCK, convolution.bias, dilation=dilation)
    if not x_BCX.is_cuda:  # in two dimensions, as oneDNN has this layout for images alone
        weight_OC1K = weight_OCK[:, :, None].contiguous(memory_format=torch.channels_last)
        made_BO1T = nn.functional.conv2d(
            x_BCX[:, :, None], weight_OC1K, convolution.bias, dilation=(1, dilation)
        )
        return made_BO1T.squeeze(2)
    on = torch.is_autocast_enabled("cuda")
    dtype = torch.get_autocast_dtype("cuda") if on else x_BCX.dtype
    with torch.autocast("cuda", enabled=False):
        made: torch.Tensor = Taps.apply(x_BCX.to(dtype), weight_OCK.to(dtype), dilation)  # type: ignore[no-untyped-call]
        return made if convolution.bias is None else made + convolution.bias.to(dtype)[:, None]


class Taps(torch.autograd.Function):
    """A convolution as a product for each of its K taps. All is computed with the channels of a bar side by
    side, (B, X, C) in memory.
    """

    @staticmethod
    def forward(context: Any, x_BCX: torch.Tensor, weight_OCK: torch.Tensor, dilation: int) -> torch.Tensor:
        x_BXC, weight_KCO = x_BCX.mT.contiguous(), weight_OCK.permute(2, 1, 0).contiguous()
        context.save_for_backward(x_BXC, weight_KCO)
        context.dilation = dilation
        seen = _tapped(x_BXC, len(weight_KCO), dilation)
        made_BTO = torch.bmm(seen[0], _for_each(weight_KCO[0], x_BXC))
        for seen_BTC, weight_CO in zip(seen[1:], weight_KCO[1:], strict=True):
            made_BTO.baddbmm_(seen_BTC, _for_each(weight_CO, x_BXC))
        return made_BTO.mT

    @staticmethod
    def backward(context: Any, grad_BOT: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x_BXC, weight_KCO = context.saved_tensors
        taps, dilation, grad_BTO = len(weight_KCO), context.dilation, grad_BOT.mT.contiguous()
        seen = _tapped(x_BXC, taps, dilation)
        grad_KCO = torch.stack([torch.bmm(seen_BTC.mT, grad_BTO).sum(0) for seen_BTC in seen])
        if not context.needs_input_grad[0]:
            return None, grad_KCO.permute(2, 1, 0), None
        grad_BXC = torch.zeros_like(x_BXC)
        for into_BTC, weight_CO in zip(_tapped(grad_BXC, taps, dilation), weight_KCO, strict=True):
            into_BTC.baddbmm_(grad_BTO, _for_each(weight_CO.mT, x_BXC))
        return grad_BXC.mT, grad_KCO.permute(2, 1, 0), None


def _tapped(x_BXC: torch.Tensor, taps: int, dilation: int) -> list[torch.Tensor]:
    """Return the bars (B, T, C) that each tap sees, as views."""
    bars = x_BXC.shape[1] - (taps - 1) * dilation
    return [x_BXC[:, tap * dilation : tap * dilation + bars] for tap in range(taps)]


def _for_each(weight_CO: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return weight_CO.expand(len(like), -1, -1)
