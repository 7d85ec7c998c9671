"""All bars of an LSTM layer's recurrence as one operation, forward and backward, for any number of models.

On a GPU bars are computed by kernels of our own (`kernels`), elsewhere in torch's steps. Both sum and keep
their states in float32 or better, whatever the numbers' type.

Shapes: M models, T time steps, B batch, H hidden size. Gates are in torch's order: enter, forget, candidate,
output.
"""

from __future__ import annotations

import warnings
from functools import cache
from types import ModuleType
from typing import Any

import torch


def lstm_bars(
    gates_MTB4H: torch.Tensor,
    recurrent_M4HH: torch.Tensor,
    bias_M4H: torch.Tensor,
    earlier_MTBH: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return hidden and cell states (M, T, B, H) after each bar.

    `gates_MTB4H` holds the products of the inputs, and then the gates, which `lstm_bars_backward` reads.
    `earlier_MTBH`, columns of a wider tensor, is filled with the hidden states before each bar.
    """
    made: tuple[torch.Tensor, torch.Tensor] = torch.ops.mayfly.lstm_bars(
        gates_MTB4H, recurrent_M4HH, bias_M4H, earlier_MTBH
    )
    return made


def lstm_bars_backward(
    grad_MTBH: torch.Tensor,
    gates_MTB4H: torch.Tensor,
    recurrent_M4HH: torch.Tensor,
    cells_MTBH: torch.Tensor,
) -> torch.Tensor:
    """Turn the gates into the gradients of the sums that they were made of; return the bias's (M, 4H)."""
    # A second pass would read gradients in the gates' place: autograd refuses one.
    torch.autograd.graph.increment_version(gates_MTB4H)
    sums_MN4H: torch.Tensor = torch.ops.mayfly.lstm_bars_backward(
        grad_MTBH, gates_MTB4H, recurrent_M4HH, cells_MTBH
    )
    return sums_MN4H.sum(1).to(gates_MTB4H.dtype)


def _forward(
    gates_MTB4H: torch.Tensor,
    recurrent_M4HH: torch.Tensor,
    bias_M4H: torch.Tensor,
    earlier_MTBH: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    hidden_MTBH, cells_MTBH = _states(gates_MTB4H)
    wide = _wide(gates_MTB4H.dtype)
    weights, bias = recurrent_M4HH.to(wide).transpose(1, 2), bias_M4H.to(wide)[:, None]
    state = torch.zeros_like(hidden_MTBH[:, 0])
    cell = state.to(wide)
    for bar in range(gates_MTB4H.shape[1]):
        earlier_MTBH[:, bar] = state
        sums = torch.baddbmm(gates_MTB4H[:, bar] + bias, state.to(wide), weights)
        enter, forget, candidate, output = sums.chunk(4, dim=-1)
        enter, forget, output = enter.sigmoid(), forget.sigmoid(), output.sigmoid()
        candidate = candidate.tanh()
        cell = torch.addcmul(enter * candidate, forget, cell)
        state = (output * cell.tanh()).to(hidden_MTBH.dtype)
        gates_MTB4H[:, bar] = torch.cat((enter, forget, candidate, output), dim=-1)
        cells_MTBH[:, bar], hidden_MTBH[:, bar] = cell, state
    return hidden_MTBH, cells_MTBH


def _backward(
    grad_MTBH: torch.Tensor,
    gates_MTB4H: torch.Tensor,
    recurrent_M4HH: torch.Tensor,
    cells_MTBH: torch.Tensor,
) -> torch.Tensor:
    wide = _wide(gates_MTB4H.dtype)
    weights = recurrent_M4HH.to(wide)
    grad_cell = carried = torch.zeros_like(grad_MTBH[:, 0], dtype=wide)
    sums_M4H = torch.zeros_like(gates_MTB4H[:, 0, 0], dtype=wide)
    for bar in reversed(range(gates_MTB4H.shape[1])):
        enter, forget, candidate, output = gates_MTB4H[:, bar].to(wide).chunk(4, dim=-1)
        before = cells_MTBH[:, bar - 1] if bar else torch.zeros_like(cells_MTBH[:, 0])
        squashed, grad_state = cells_MTBH[:, bar].to(wide).tanh(), grad_MTBH[:, bar] + carried
        grad_cell = grad_cell + grad_state * output * (1 - squashed * squashed)
        grads = (
            grad_cell * candidate * enter * (1 - enter),
            grad_cell * before * forget * (1 - forget),
            grad_cell * enter * (1 - candidate * candidate),
            grad_state * squashed * output * (1 - output),
        )
        grad_cell = grad_cell * forget
        gates_MTB4H[:, bar] = torch.cat(grads, dim=-1)  # in the place of what was read
        taken = gates_MTB4H[:, bar].to(wide)
        sums_M4H += taken.sum(1)
        carried = torch.bmm(taken, weights)
    return sums_M4H[:, None]


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _states(gates_MTB4H: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    *bars, gates = gates_MTB4H.shape
    hidden_MTBH = gates_MTB4H.new_empty(*bars, gates // 4)
    return hidden_MTBH, torch.empty_like(hidden_MTBH)


@cache
def _kernels(device: torch.device, dtype: torch.dtype, hidden: int) -> ModuleType | None:
    """Return our kernels if they work on a device for weights (4H, H) of this type, else None: they are not
    for float64, or Triton is not there, or finds no C compiler. Raises a RuntimeError of a full GPU.
    """
    if dtype == torch.float64:
        return None
    weights = torch.zeros(1, 4 * hidden, hidden, dtype=dtype, device=device)
    try:
        from trainer.models.lstm import kernels

        kernels.try_out(weights)
    except Exception as error:  # the first call compiles: whatever a compiler raises
        if "out of memory" in str(error):  # torch's allocator, or the driver: fewer models may leave room
            raise
        warnings.warn(f"an LSTM's bars are computed in torch's steps: {error}", stacklevel=2)
        return None
    return kernels


def _forward_on_gpu(
    gates_MTB4H: torch.Tensor,
    recurrent_M4HH: torch.Tensor,
    bias_M4H: torch.Tensor,
    earlier_MTBH: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    if kernels := _kernels(gates_MTB4H.device, gates_MTB4H.dtype, recurrent_M4HH.shape[2]):
        states = _states(gates_MTB4H)
        kernels.forward_bars(gates_MTB4H, recurrent_M4HH, bias_M4H, earlier_MTBH, *states)
        return states
    return _forward(gates_MTB4H, recurrent_M4HH, bias_M4H, earlier_MTBH)


def _backward_on_gpu(
    grad_MTBH: torch.Tensor,
    gates_MTB4H: torch.Tensor,
    recurrent_M4HH: torch.Tensor,
    cells_MTBH: torch.Tensor,
) -> torch.Tensor:
    if kernels := _kernels(gates_MTB4H.device, gates_MTB4H.dtype, recurrent_M4HH.shape[2]):
        sums_MN4H: torch.Tensor = kernels.backward_bars(grad_MTBH, gates_MTB4H, recurrent_M4HH, cells_MTBH)
        return sums_MN4H
    return _backward(grad_MTBH, gates_MTB4H, recurrent_M4HH, cells_MTBH)


# Operations of torch's, so that one counts as one wherever operations are seen. Its own shorter way to make
# them loads its compiler at the first call.
_OPERATIONS: Any = torch.library.Library("mayfly", "DEF")  # type: ignore[no-untyped-call]
_OPERATIONS.define(
    "lstm_bars(Tensor(a!) gates, Tensor recurrent, Tensor bias, Tensor(b!) earlier) -> (Tensor, Tensor)"
)
_OPERATIONS.define(
    "lstm_bars_backward(Tensor grad, Tensor(a!) gates, Tensor recurrent, Tensor cells) -> Tensor"
)
_OPERATIONS.impl("lstm_bars", _forward, "CPU")
_OPERATIONS.impl("lstm_bars_backward", _backward, "CPU")
_OPERATIONS.impl("lstm_bars", _forward_on_gpu, "CUDA")
_OPERATIONS.impl("lstm_bars_backward", _backward_on_gpu, "CUDA")
_OPERATIONS.impl("lstm_bars", lambda gates, *_: _states(gates), "Meta")
_OPERATIONS.impl(
    "lstm_bars_backward", lambda _, gates, *__: gates.new_empty(len(gates), 1, gates.shape[-1]), "Meta"
)
