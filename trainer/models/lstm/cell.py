"""One bar of an LSTM's recurrence as one kernel, forward and backward, for any number of models at once.

torch has both for CUDA, as `nn.LSTMCell` uses them (aten/src/ATen/native/cuda/RNN.cu, torch 2.13). On a CPU
the same function is computed in steps. Each computes in float32 or better, whatever its numbers' type.

Shapes: N rows of all models, H hidden size.
"""

from __future__ import annotations

from typing import Any

import torch


def lstm_cell(
    input_N4H: torch.Tensor, recurrent_N4H: torch.Tensor, cell_NH: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return hidden state (N, H), cell state (N, H) and the gates (N, 4H) that `lstm_cell_backward` reads.

    Gates are the sum of both inputs, in torch's order: enter, forget, candidate, output.
    """
    made: tuple[torch.Tensor, torch.Tensor, torch.Tensor] = torch.ops.mayfly.lstm_cell(
        input_N4H, recurrent_N4H, cell_NH
    )
    return made


def lstm_cell_backward(
    grad_hidden_NH: torch.Tensor,
    grad_cell_NH: torch.Tensor,
    before_NH: torch.Tensor,
    cell_NH: torch.Tensor,
    gates_N4H: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradients of the sum of both inputs (N, 4H) and of the cell state `before_NH`."""
    made: tuple[torch.Tensor, torch.Tensor] = torch.ops.mayfly.lstm_cell_backward(
        grad_hidden_NH, grad_cell_NH, before_NH, cell_NH, gates_N4H
    )
    return made


def _forward(
    input_N4H: torch.Tensor, recurrent_N4H: torch.Tensor, cell_NH: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    wide = _wide(input_N4H.dtype)
    enter, forget, candidate, output = (input_N4H.to(wide) + recurrent_N4H.to(wide)).chunk(4, dim=1)
    enter, forget, output = enter.sigmoid(), forget.sigmoid(), output.sigmoid()
    candidate = candidate.tanh()
    cell = torch.addcmul(enter * candidate, forget, cell_NH.to(wide))
    gates = torch.cat((enter, forget, candidate, output), dim=1)
    return (output * cell.tanh()).to(input_N4H.dtype), cell.to(input_N4H.dtype), gates.to(input_N4H.dtype)


def _backward(
    grad_hidden_NH: torch.Tensor,
    grad_cell_NH: torch.Tensor,
    before_NH: torch.Tensor,
    cell_NH: torch.Tensor,
    gates_N4H: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    wide = _wide(gates_N4H.dtype)
    enter, forget, candidate, output = gates_N4H.to(wide).chunk(4, dim=1)
    squashed, grad_hidden = cell_NH.to(wide).tanh(), grad_hidden_NH.to(wide)
    grad_cell = grad_cell_NH.to(wide) + grad_hidden * output * (1 - squashed * squashed)
    grad_gates = torch.cat(
        (
            grad_cell * candidate * enter * (1 - enter),
            grad_cell * before_NH.to(wide) * forget * (1 - forget),
            grad_cell * enter * (1 - candidate * candidate),
            grad_hidden * squashed * output * (1 - output),
        ),
        dim=1,
    )
    return grad_gates.to(gates_N4H.dtype), (grad_cell * forget).to(gates_N4H.dtype)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


# Operations of torch's, so that one counts as one wherever operations are seen. Its own shorter way to make
# them loads its compiler at the first call.
_OPERATIONS: Any = torch.library.Library("mayfly", "DEF")  # type: ignore[no-untyped-call]
_OPERATIONS.define("lstm_cell(Tensor inputs, Tensor recurrent, Tensor cell) -> (Tensor, Tensor, Tensor)")
_OPERATIONS.define(
    "lstm_cell_backward(Tensor grad_hidden, Tensor grad_cell, Tensor before, Tensor cell, Tensor gates)"
    " -> (Tensor, Tensor)"
)
_OPERATIONS.impl("lstm_cell", _forward, "CPU")
_OPERATIONS.impl("lstm_cell_backward", _backward, "CPU")
_OPERATIONS.impl("lstm_cell", lambda *states: torch.ops.aten._thnn_fused_lstm_cell(*states), "CUDA")
_OPERATIONS.impl(
    "lstm_cell_backward",
    lambda *states: torch.ops.aten._thnn_fused_lstm_cell_backward_impl(*states, False)[:2],
    "CUDA",
)
_OPERATIONS.impl(
    "lstm_cell",
    lambda inputs, _, cell: (torch.empty_like(cell), torch.empty_like(cell), torch.empty_like(inputs)),
    "Meta",
)
_OPERATIONS.impl(
    "lstm_cell_backward",
    lambda _, __, before, ___, gates: (torch.empty_like(gates), torch.empty_like(before)),
    "Meta",
)
