"""The LSTM: stacked single-layer LSTMs; a linear head on the last hidden state gives the outputs.

Owns the architecture only; scaling, windows, loss and training are in `trainer.train`.

Built from single-layer `nn.LSTM`s, because `nn.LSTM(dropout=)` draws from a generator that all models of a
process share, and a model's result must not depend on the others. Time is the first dimension, as oneDNN and
cuDNN prefer.

Shapes: T time steps, B batch, F features, H hidden size, O outputs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from trainer.models.layers import in_full_precision, keep_mask, run
from trainer.models.lstm.stacked import StackedLstm

# Added to the forget gates' bias. torch draws it around zero, where a cell halves its content at each bar,
# and nothing twenty bars back is ever learned (benchmarks/learning.py: AUC 0.51 without this, 0.95 with it).
# The usual remedy: Gers et al. 2000; Jozefowicz et al. 2015, section 5
# (https://proceedings.mlr.press/v37/jozefowicz15.html).
FORGET_BIAS = 1.0


def build(architecture: dict[str, Any], *, recompute: bool = False) -> Lstm:
    """Build an untrained network. Its weights come from torch's global generator."""
    return Lstm(**architecture, recompute=recompute)


def stacked(
    architecture: dict[str, Any], *, recompute: bool = False, matmul_dtype: torch.dtype | None = None
) -> StackedLstm:
    """Return the same architecture as one program over the stacked weights of many networks."""
    return StackedLstm(**architecture, recompute=recompute, matmul_dtype=matmul_dtype)


class Lstm(nn.Module):
    """The network: outputs for a window of bars."""

    def __init__(
        self,
        *,
        features: int,
        hidden: int,
        layers: int,
        dropout: float,
        outputs: int = 1,
        recompute: bool = False,
    ) -> None:
        """`recompute`: compute each layer's activations again in the backward pass, for less memory and more
        time.
        """
        super().__init__()
        self.dropout, self._recompute = dropout, recompute
        self.lstms = nn.ModuleList(
            nn.LSTM(features if layer == 0 else hidden, hidden) for layer in range(layers)
        )
        self.head = nn.Linear(hidden, outputs)
        with torch.no_grad():
            for lstm in self.lstms:
                bias = lstm.get_parameter("bias_ih_l0")
                # torch's order of gates: input, forget, cell, output.
                bias[hidden : 2 * hidden] += FORGET_BIAS

    def forward(
        self, x_TBF: torch.Tensor, keys_L2: torch.Tensor | None = None, first_row: int = 0
    ) -> torch.Tensor:
        """Return outputs (B, O) float32 for scaled windows (T, B, F) float32.

        Dropout is on if `keys_L2` ((L, 2) int32, a key for each layer) is given; `first_row` is the position
        of x's first window in its batch.
        """
        hidden_TBH = x_TBF
        for layer, lstm in enumerate(self.lstms):
            hidden_TBH = run(_hidden_states, lstm, hidden_TBH, recompute=self._recompute)
            between_layers = layer + 1 < len(self.lstms)
            if between_layers and keys_L2 is not None and self.dropout > 0:
                steps, rows, hidden = hidden_TBH.shape
                keep = keep_mask(
                    keys_L2[layer : layer + 1],
                    first_row=first_row,
                    shape_TBH=(steps, rows, hidden),
                    probability=1 - self.dropout,
                )
                hidden_TBH = hidden_TBH * keep[0] * (1 / (1 - self.dropout))
        return in_full_precision(self.head, hidden_TBH[-1])


def _hidden_states(lstm: nn.Module, x_TBF: torch.Tensor) -> torch.Tensor:
    """Return a layer's hidden states (T, B, H), under autocast on a GPU in autocast's dtype."""
    if x_TBF.device.type == "cuda" and torch.is_autocast_enabled("cuda"):
        with torch.autocast("cuda", enabled=False):
            return run_in(torch.get_autocast_dtype("cuda"), lstm, x_TBF)
    if x_TBF.device.type == "cuda" and not _in_one_buffer(lstm):
        return run_in(x_TBF.dtype, lstm, x_TBF)
    hidden_TBH: torch.Tensor = lstm(x_TBF)[0]
    return hidden_TBH


def _in_one_buffer(lstm: nn.Module) -> bool:
    """Return whether a layer's weights fill one buffer, as cuDNN wants them; weights in rows of a pack's
    matrices don't, and torch would copy them at each call, with a warning.
    """
    weights = list(lstm.parameters())
    return weights[0].untyped_storage().nbytes() == sum(weight.nbytes for weight in weights)


def run_in(dtype: torch.dtype, lstm: nn.Module, x_TBF: torch.Tensor) -> torch.Tensor:
    """Return a single layer's hidden states (T, B, H), computed in `dtype`; gradients have the weights'
    dtype.

    Autocast does not do this on a GPU: it always runs cuDNN's LSTM in fp16, where the unscaled gradients of a
    bf16 training vanish (`_cudnn_rnn_cast_reflatten` in torch's aten/src/ATen/cudnn/AutocastRNN.cpp, read
    2026-11-21).
    """
    weights = list(lstm.parameters())
    # One buffer in cuDNN's order, so that cuDNN does not copy.
    flat = torch.cat([weight.reshape(-1) for weight in weights]).to(dtype)
    parts = flat.split_with_sizes([weight.numel() for weight in weights])
    cast = [part.view_as(weight) for part, weight in zip(parts, weights, strict=True)]
    zero_1BH = torch.zeros(1, x_TBF.shape[1], weights[1].shape[1], dtype=dtype, device=x_TBF.device)
    hidden_TBH: torch.Tensor
    hidden_TBH, _, _ = torch.lstm(
        x_TBF.to(dtype), (zero_1BH, zero_1BH), cast, True, 1, 0.0, lstm.training, False, False
    )
    return hidden_TBH
