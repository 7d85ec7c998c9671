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

from trainer.models.layers import keep_mask, run


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
        matmul_dtype: torch.dtype | None = None,
    ) -> None:
        """Matrix products run in `matmul_dtype` (default: the weights' dtype); gates, cells and sums in the
        weights' dtype.
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

    def forward(
        self,
        weights_MP: torch.Tensor,
        x_MTBF: torch.Tensor,
        keys_LM2: torch.Tensor | None = None,
        first_row: int = 0,
    ) -> torch.Tensor:
        """Return outputs (M, B, O) for scaled windows; dropout as in `Lstm.forward`."""
        part = self._cut(weights_MP)
        hidden_MTBH = x_MTBF
        for layer in range(self.layers):
            name = f"lstms.{layer}"
            inputs = (hidden_MTBH, part[f"{name}.weight_ih_l0"], part[f"{name}.weight_hh_l0"])
            bias_M4H = part[f"{name}.bias_ih_l0"] + part[f"{name}.bias_hh_l0"]
            dtype = self._matmul_dtype or weights_MP.dtype
            hidden_MTBH = run(_recurrence, *inputs, bias_M4H, dtype, recompute=self._recompute)
            if layer + 1 < self.layers and keys_LM2 is not None and self.dropout > 0:
                _, steps, rows, hidden = hidden_MTBH.shape
                keep = keep_mask(
                    keys_LM2[layer],
                    first_row=first_row,
                    shape_TBH=(steps, rows, hidden),
                    probability=1 - self.dropout,
                )
                hidden_MTBH = hidden_MTBH * keep * (1 / (1 - self.dropout))
        last_MBH = hidden_MTBH[:, -1]
        return torch.baddbmm(part["head.bias"].unsqueeze(1), last_MBH, part["head.weight"].transpose(1, 2))

    def flatten(self, state: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return one model's weights (P,) from its plain state dictionary."""
        return torch.cat([state[name].reshape(-1) for name in self.shapes])

    def unflatten(self, weights_P: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return one model's plain state dictionary, as views of its weights (P,)."""
        return {name: stacked[0] for name, stacked in self._cut(weights_P.unsqueeze(0)).items()}

    def _cut(self, weights_MP: torch.Tensor) -> dict[str, torch.Tensor]:
        # The gradient of one split is one concatenation; each slice's would be a tensor of zeros as large as
        # all weights.
        parts = weights_MP.split_with_sizes([math.prod(shape) for shape in self.shapes.values()], dim=1)
        named = zip(self.shapes.items(), parts, strict=True)
        return {name: part.reshape(len(weights_MP), *shape) for (name, shape), part in named}


def _recurrence(*inputs: object) -> torch.Tensor:
    hidden_MTBH: torch.Tensor = _Recurrence.apply(*inputs)  # type: ignore[no-untyped-call]
    return hidden_MTBH


class _Recurrence(torch.autograd.Function):
    """One LSTM layer of M models: one matrix product for all inputs and T for the recurrence, forward and
    backward.
    """

    @staticmethod
    def forward(
        context: Any,
        x_MTBF: torch.Tensor,
        input_M4HF: torch.Tensor,
        recurrent_M4HH: torch.Tensor,
        bias_M4H: torch.Tensor,
        dtype: torch.dtype,
    ) -> torch.Tensor:
        models, steps, rows, features = x_MTBF.shape
        hidden = recurrent_M4HH.shape[-1]
        flat_x = x_MTBF.reshape(models, steps * rows, features)
        gates = _add_product(bias_M4H.unsqueeze(1), flat_x, input_M4HF.transpose(1, 2), dtype)
        gates = gates.view(models, steps, rows, 4 * hidden)
        hidden_MTBH = x_MTBF.new_empty(models, steps, rows, hidden)
        cells = x_MTBF.new_empty(steps, models, rows, hidden)
        recurrent_t = recurrent_M4HH.transpose(1, 2).to(dtype)
        previous_h = previous_c = None
        for t in range(steps):
            gate = gates[:, t]
            if previous_h is not None:
                gate.copy_(_add_product(gate, previous_h, recurrent_t, dtype))
            gate[..., : 2 * hidden].sigmoid_()
            gate[..., 2 * hidden : 3 * hidden].tanh_()
            gate[..., 3 * hidden :].sigmoid_()
            enter, forget, candidate, output = gate.split_with_sizes([hidden] * 4, dim=-1)
            torch.mul(enter, candidate, out=cells[t])
            if previous_c is not None:
                cells[t].addcmul_(forget, previous_c)
            previous_c = cells[t]
            previous_h = output * previous_c.tanh()
            hidden_MTBH[:, t] = previous_h
        context.save_for_backward(x_MTBF, input_M4HF, recurrent_M4HH, gates, hidden_MTBH, cells)
        context.dtype = dtype
        return hidden_MTBH

    @staticmethod
    def backward(context: Any, grad_MTBH: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x_MTBF, input_M4HF, recurrent_M4HH, gates, hidden_MTBH, cells = context.saved_tensors
        dtype = context.dtype
        models, steps, rows, features = x_MTBF.shape
        hidden = recurrent_M4HH.shape[-1]
        grad_gates = torch.empty_like(gates)  # saved activations are not overwritten: a graph may be replayed
        grad_c = torch.zeros_like(cells[0])
        grad_h = grad_MTBH[:, steps - 1]
        recurrent = recurrent_M4HH.to(dtype)
        for t in range(steps - 1, -1, -1):
            enter, forget, candidate, output = gates[:, t].split_with_sizes([hidden] * 4, dim=-1)
            squashed = cells[t].tanh()
            grad_c = grad_c + grad_h * output * (1 - squashed * squashed)
            into = grad_gates[:, t].split_with_sizes([hidden] * 4, dim=-1)
            into[0].copy_(grad_c * candidate * enter * (1 - enter))
            if t:
                into[1].copy_(grad_c * cells[t - 1] * forget * (1 - forget))
            else:
                into[1].zero_()
            into[2].copy_(grad_c * enter * (1 - candidate * candidate))
            into[3].copy_(grad_h * squashed * output * (1 - output))
            grad_c = grad_c * forget
            if t:
                grad_h = _add_product(grad_MTBH[:, t - 1], grad_gates[:, t], recurrent, dtype)
        flat_grad = grad_gates.view(models, steps * rows, 4 * hidden)
        later = grad_gates[:, 1:].reshape(models, (steps - 1) * rows, 4 * hidden)
        earlier = hidden_MTBH[:, :-1].reshape(models, (steps - 1) * rows, hidden)
        grad_recurrent = _product(later.transpose(1, 2), earlier, dtype)
        grad_input = _product(
            flat_grad.transpose(1, 2), x_MTBF.reshape(models, steps * rows, features), dtype
        )
        grad_x = (
            _product(flat_grad, input_M4HF, dtype).view_as(x_MTBF) if context.needs_input_grad[0] else None
        )
        return grad_x, grad_input, grad_recurrent, flat_grad.sum(1), None


def _product(left: torch.Tensor, right: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.bmm(left.to(dtype), right.to(dtype)).to(left.dtype)


def _add_product(
    added: torch.Tensor, left: torch.Tensor, right: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """Return added + left @ right, multiplied in `dtype` and summed in the dtype of `added`."""
    if dtype == added.dtype:
        return torch.baddbmm(added, left, right)
    return added + torch.bmm(left.to(dtype), right.to(dtype)).to(added.dtype)
