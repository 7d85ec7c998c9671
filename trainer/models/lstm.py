"""The LSTM direction classifier: single-layer LSTMs one over the other, the last hidden state to one logit.

Owns the architecture only; scaling, windows, loss and training are `trainer.train`.

Built of single-layer `nn.LSTM`s, because `nn.LSTM(dropout=)` draws from a generator that all models of a process share,
and a model's result must not depend on its neighbours. Time comes first, as oneDNN and cuDNN want it.

Shapes: T time steps, B batch, F features, H hidden size.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from trainer.models.dropout import keep_mask

# What the forget gates begin with beside torch's draw around zero, where a cell halves what it holds at each bar and nothing
# that is twenty bars back is ever found (measured: benchmarks/learning.py, AUC 0.51 without and 0.95 with it). The usual
# remedy: Gers et al. 2000; Jozefowicz et al. 2015, section 5 (https://proceedings.mlr.press/v37/jozefowicz15.html).
FORGET_BIAS = 1.0


class LstmClassifier(nn.Module):
    """Say how likely the label 1 is after a window of bars."""

    def __init__(self, *, features: int, hidden: int, layers: int, dropout: float, recompute: bool = False) -> None:
        """`recompute` trades time for memory: each layer's activations are computed again in the backward pass."""
        super().__init__()
        self.dropout, self._recompute = dropout, recompute
        self.lstms = nn.ModuleList(nn.LSTM(features if layer == 0 else hidden, hidden) for layer in range(layers))
        self.head = nn.Linear(hidden, 1)
        with torch.no_grad():
            for lstm in self.lstms:
                bias = lstm.get_parameter("bias_ih_l0")
                bias[hidden : 2 * hidden] += FORGET_BIAS  # torch's order of gates: input, forget, cell, output

    def forward(self, x_TBF: torch.Tensor, keys_L2: torch.Tensor | None = None, first_row: int = 0) -> torch.Tensor:
        """Return logits (B,) float32 for scaled windows (T, B, F) float32.

        Dropout is on where `keys_L2` ((L, 2) int32, a key for each layer) is given; `first_row` is the place of x's first
        window in its batch.
        """
        hidden_TBH = x_TBF
        for layer, lstm in enumerate(self.lstms):
            if self._recompute and torch.is_grad_enabled():
                # Nothing in a layer is random: dropout is a function of its key.
                hidden_TBH, _ = checkpoint(lstm, hidden_TBH, use_reentrant=False, preserve_rng_state=False)
            else:
                hidden_TBH, _ = lstm(hidden_TBH)
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
        # The head stays in full precision under autocast: three digits of a logit are too few for a loss.
        with torch.autocast(x_TBF.device.type, enabled=False):
            logits_B: torch.Tensor = self.head(hidden_TBH[-1].to(self.head.weight.dtype)).squeeze(-1)
        return logits_B
