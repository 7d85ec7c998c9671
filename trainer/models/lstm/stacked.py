"""Many LSTMs of one architecture as one batched program, with the results of `network` for each model.

For GPUs, where one small LSTM leaves most of the chip idle. On a CPU it is slower than one model after
another (0.4 to 1.1 times the speed, measured 2026-11-20 and -21) and runs only so that tests can compare it
on any machine.

All weights of a model are one row of a (M, P) tensor, split into views here, so that optimizer and clipping
work on a single tensor. The recurrence is differentiated by hand, since autograd's tape of small operations
doubles the cost. Both biases of `nn.LSTM` are kept: merged into one, they would move half as far under Adam.

Shapes: M models, T time steps, B batch, F features, H hidden size, P weights of one model, L layers, O
outputs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from trainer.models.layers import keep_mask, run
from trainer.models.lstm import OUR_PARTS, padded
from trainer.models.lstm.bars import lstm_bars, lstm_bars_backward

HEAD = 2  # of the weights, the last


class StackedLstm:
    """The forward pass of M models over stacked weights, and conversion from and to plain state
    dictionaries.
    """

    def __init__(
        self,
        *,
        features: int,
        hidden: int,
        layers: int,
        dropout: float,
        outputs: int = 1,
        recompute: bool = False,
        matmul_dtype: torch.dtype | None,
    ) -> None:
        """The recurrence and its states have `matmul_dtype` (None: the weights' dtype); a cell is computed
        in float32. Weights, their gradients and the head have the weights' dtype.
        """
        self.layers, self.dropout = layers, dropout
        self._recompute, self._matmul_dtype = recompute, matmul_dtype
        shapes: dict[str, tuple[int, ...]] = {}
        for layer in range(layers):
            inputs = features if layer == 0 else hidden
            shapes[f"lstms.{layer}.weight_ih_l0"] = (4 * hidden, inputs)
            shapes[f"lstms.{layer}.weight_hh_l0"] = (4 * hidden, hidden)
            shapes[f"lstms.{layer}.bias_ih_l0"] = (4 * hidden,)
            shapes[f"lstms.{layer}.bias_hh_l0"] = (4 * hidden,)
        shapes["head.weight"] = (outputs, hidden)
        shapes["head.bias"] = (outputs,)
        self.shapes = shapes
        sizes = [math.prod(shape) for shape in shapes.values()]
        self._recurrent, self._head = sum(sizes[:-HEAD]), sum(sizes[-HEAD:])

    def forward(
        self,
        weights_MP: torch.Tensor,
        x_MTBF: torch.Tensor,
        keys_LM2: torch.Tensor | None = None,
        first_row: int = 0,
    ) -> torch.Tensor:
        """Return outputs (M, B, O) for scaled windows; dropout as in `Lstm.forward`."""
        dtype = self._matmul_dtype or weights_MP.dtype
        parts: tuple[torch.Tensor, ...] = (weights_MP,)
        if dtype != weights_MP.dtype:  # the head keeps it
            recurrent, head = weights_MP.split_with_sizes([self._recurrent, self._head], dim=1)
            parts = (recurrent.to(dtype), head)
        part = self._cut(*parts)
        hidden_MTBH = x_MTBF
        for layer in range(self.layers):
            name = f"lstms.{layer}"
            inputs = (hidden_MTBH, part[f"{name}.weight_ih_l0"], part[f"{name}.weight_hh_l0"])
            bias_M4H = part[f"{name}.bias_ih_l0"] + part[f"{name}.bias_hh_l0"]
            hidden_MTBH = run(_recurrence, *inputs, bias_M4H, recompute=self._recompute)
            if layer + 1 < self.layers and keys_LM2 is not None and self.dropout > 0:
                _, steps, rows, hidden = hidden_MTBH.shape
                keep = keep_mask(
                    keys_LM2[layer],
                    first_row=first_row,
                    shape_TBH=(steps, rows, hidden),
                    probability=1 - self.dropout,
                )
                hidden_MTBH = hidden_MTBH * keep * (1 / (1 - self.dropout))
        last_MBH = hidden_MTBH[:, -1].to(weights_MP.dtype, copy=True)  # a view would keep all bars
        return torch.baddbmm(part["head.bias"].unsqueeze(1), last_MBH, part["head.weight"].transpose(1, 2))

    def flatten(self, state: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return one model's weights (P,) from its plain state dictionary."""
        return torch.cat([state[name].reshape(-1) for name in self.shapes])

    def unflatten(self, weights_P: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return one model's plain state dictionary, as views of its weights (P,)."""
        return {name: stacked[0] for name, stacked in self._cut(weights_P.unsqueeze(0)).items()}

    def _cut(self, *parts_MP: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return each weight of all models by name; given apart, the head's are the last."""
        # The gradient of one split is one concatenation; each slice's would be a tensor of zeros as large as
        # all weights.
        sizes = [math.prod(shape) for shape in self.shapes.values()]
        by_part = [sizes] if len(parts_MP) == 1 else [sizes[:-HEAD], sizes[-HEAD:]]
        both = zip(parts_MP, by_part, strict=True)
        cut = [part for part_MP, its in both for part in part_MP.split_with_sizes(its, dim=1)]
        named = zip(self.shapes.items(), cut, strict=True)
        return {name: part.reshape(len(part), *shape) for (name, shape), part in named}


def _recurrence(*inputs: object) -> torch.Tensor:
    hidden_MTBH: torch.Tensor = _Recurrence.apply(*inputs)  # type: ignore[no-untyped-call]
    return hidden_MTBH


class _Recurrence(torch.autograd.Function):
    """One LSTM layer of M models: one matrix product for all inputs, and one operation for all bars, forward
    and backward.
    """

    @staticmethod
    def forward(
        context: Any,
        x_MTBF: torch.Tensor,
        input_M4HF: torch.Tensor,
        recurrent_M4HH: torch.Tensor,
        bias_M4H: torch.Tensor,
    ) -> torch.Tensor:
        *bars, features = x_MTBF.shape
        gates, hidden = recurrent_M4HH.shape[1:]
        # What a bar's gates are made of, beside each other: the hidden state before it, its input, and zeros
        # up to a whole unit of memory, for which products have their fast kernels.
        read_MTBC = input_M4HF.new_empty(*bars, padded(hidden + features))
        zeros = read_MTBC.shape[-1] - hidden - features
        read_MTBC[..., hidden : hidden + features] = x_MTBF
        read_MTBC[..., hidden + features :] = 0
        weights = nn.functional.pad(input_M4HF, (0, zeros)).transpose(1, 2)
        gates_MTB4H = torch.bmm(read_MTBC.flatten(1, 2)[..., hidden:], weights).view(*bars, gates)
        hidden_MTBH, cells_MTBH = lstm_bars(gates_MTB4H, recurrent_M4HH, bias_M4H, read_MTBC[..., :hidden])
        context.save_for_backward(read_MTBC, gates_MTB4H, cells_MTBH, input_M4HF, recurrent_M4HH)
        return hidden_MTBH

    @staticmethod
    def backward(context: Any, grad_MTBH: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        read_MTBC, gates_MTB4H, cells_MTBH, input_M4HF, recurrent_M4HH = context.saved_tensors
        hidden, features = recurrent_M4HH.shape[2], input_M4HF.shape[2]
        grad_bias_M4H = lstm_bars_backward(grad_MTBH.contiguous(), gates_MTB4H, recurrent_M4HH, cells_MTBH)
        grad_gates = gates_MTB4H.flatten(1, 2)
        both = _summed(grad_gates, read_MTBC.flatten(1, 2))
        grad_recurrent, grad_input = both[..., :hidden], both[..., hidden : hidden + features]
        grad_x = None
        if context.needs_input_grad[0]:
            grad_x = torch.bmm(grad_gates, input_M4HF).view(*grad_MTBH.shape[:3], features)
        return grad_x, grad_input, grad_recurrent, grad_bias_M4H


def _summed(left_MNX: torch.Tensor, right_MNY: torch.Tensor) -> torch.Tensor:
    """Return the products (M, X, Y) of transposed matrices, summed over N = T x B rows.

    A few small products of so many rows leave most of a GPU idle: there they are cut into parts. Those of 20
    models of 64 units took 0.60 ms on an H200 instead of 0.86 (2026-11-28).
    """
    models, rows, _ = left_MNX.shape
    parts = OUR_PARTS if left_MNX.device.type != "cpu" and not rows % OUR_PARTS else 1
    if parts == 1:
        return torch.bmm(left_MNX.transpose(1, 2), right_MNY)
    left, right = (each.reshape(models * parts, rows // parts, -1) for each in (left_MNX, right_MNY))
    return torch.bmm(left.transpose(1, 2), right).view(models, parts, *(left.shape[2], right.shape[2])).sum(1)
