"""The bars of an LSTM's recurrence in Triton kernels, forward and backward, for many models at once.

Of small models one kernel takes all bars. A program owns some rows of one model: the recurrent weights, where
they fit, and the states stay on the chip, and of each bar only the gates, the cell state and the hidden state
pass through memory. Products of float32 are taken as three of TF32 (error 2^-21, as of a product in float32).

Of wider models, and on older chips, a bar is torch's product and one kernel for the rest. Both sum products
in float32.

Shapes: M models, T time steps, B batch, H hidden size, N programs of a model. Gates are in torch's order:
enter, forget, candidate, output.
"""

from __future__ import annotations

from typing import Any

import torch
import triton

from trainer.models.lstm import padded, programs

ROWS = 16  # of a program, the fewest of a matrix unit: many short programs hide each other's waits
WARPS = 8
UNITS = 64  # the most whose arithmetic has room in a program's registers; in half precision twice as many
OLDEST = (8, 0)  # compute capability of the first matrix units for TF32 and bf16
SPARE = 1 << 14  # bytes of a program's memory beside its weights
CELLS = 512  # of a program that computes one bar


def all_bars_fit(recurrent_M4HH: torch.Tensor) -> bool:
    """Return whether one kernel takes all bars with weights of this size and type on this device."""
    is_new = (
        recurrent_M4HH.device.type == "cpu"
        or torch.cuda.get_device_capability(recurrent_M4HH.device) >= OLDEST
    )
    units = _units(recurrent_M4HH.shape[2])
    is_half = recurrent_M4HH.dtype != torch.float32
    return is_new and (units <= UNITS or (is_half and units <= 2 * UNITS and _weights_stay(recurrent_M4HH)))


def try_out(recurrent_1_4HH: torch.Tensor) -> None:
    """Compile the kernels for weights of this size and type and run them; Triton raises what it will."""
    _, gates, hidden = recurrent_1_4HH.shape
    gates_MTB4H = recurrent_1_4HH.new_zeros(1, 2, ROWS, gates)
    # As in use, each row of these begins at a whole unit of memory.
    earlier, after, cells = (recurrent_1_4HH.new_zeros(1, 2, ROWS, padded(hidden)) for _ in range(3))
    after, cells = (each[..., :hidden].contiguous() for each in (after, cells))
    forward_bars(gates_MTB4H, recurrent_1_4HH, gates_MTB4H[:, 0, 0], earlier[..., :hidden], after, cells)
    backward_bars(after, gates_MTB4H, recurrent_1_4HH, cells)


def forward_bars(
    gates_MTB4H: torch.Tensor,
    recurrent_M4HH: torch.Tensor,
    bias_M4H: torch.Tensor,
    earlier_MTBH: torch.Tensor,
    hidden_MTBH: torch.Tensor,
    cells_MTBH: torch.Tensor,
) -> None:
    """Turn `gates_MTB4H`, products of the inputs, into gates; fill the hidden states before and after each
    bar, and the cell states after it.
    """
    models, steps, rows, hidden = hidden_MTBH.shape
    if not all_bars_fit(recurrent_M4HH):
        _forward_by_bars(gates_MTB4H, recurrent_M4HH, bias_M4H, earlier_MTBH, hidden_MTBH, cells_MTBH)
        return
    programs.forward[(triton.cdiv(rows, ROWS), models)](
        gates_MTB4H,
        recurrent_M4HH,
        bias_M4H,
        earlier_MTBH,
        hidden_MTBH,
        cells_MTBH,
        steps,
        rows,
        recurrent_M4HH.stride(0),
        bias_M4H.stride(0),
        earlier_MTBH.stride(2),
        **_options(recurrent_M4HH),
    )


def backward_bars(
    grad_MTBH: torch.Tensor,
    gates_MTB4H: torch.Tensor,
    recurrent_M4HH: torch.Tensor,
    cells_MTBH: torch.Tensor,
) -> torch.Tensor:
    """Turn the gates into gradients of the sums that they were made of; return these summed over bars and
    each program's rows (M, N, 4H) float32.
    """
    models, steps, rows, hidden = grad_MTBH.shape
    if not all_bars_fit(recurrent_M4HH):
        return _backward_by_bars(grad_MTBH, gates_MTB4H, recurrent_M4HH, cells_MTBH)
    parts = triton.cdiv(rows, ROWS)
    sums_MN4H = torch.empty(models, parts, 4 * hidden, dtype=torch.float32, device=grad_MTBH.device)
    programs.backward[(parts, models)](
        grad_MTBH,
        gates_MTB4H,
        recurrent_M4HH,
        cells_MTBH,
        sums_MN4H,
        steps,
        rows,
        recurrent_M4HH.stride(0),
        **_options(recurrent_M4HH),
    )
    return sums_MN4H


def _forward_by_bars(
    gates_MTB4H: torch.Tensor,
    recurrent_M4HH: torch.Tensor,
    bias_M4H: torch.Tensor,
    earlier_MTBH: torch.Tensor,
    hidden_MTBH: torch.Tensor,
    cells_MTBH: torch.Tensor,
) -> None:
    models, steps, rows, hidden = hidden_MTBH.shape
    sums = cell_MBH = torch.empty(models, rows, hidden, dtype=torch.float32, device=gates_MTB4H.device)
    for step in range(steps):
        if step:
            sums = _float32_product(hidden_MTBH[:, step - 1], recurrent_M4HH.transpose(1, 2))
        programs.forward_bar[(triton.cdiv(rows * hidden, CELLS), models)](
            sums,
            gates_MTB4H,
            bias_M4H,
            earlier_MTBH,
            hidden_MTBH,
            cells_MTBH,
            cell_MBH,
            step,
            steps,
            rows,
            bias_M4H.stride(0),
            earlier_MTBH.stride(2),
            HIDDEN=hidden,
            CELLS=CELLS,
        )


def _backward_by_bars(
    grad_MTBH: torch.Tensor,
    gates_MTB4H: torch.Tensor,
    recurrent_M4HH: torch.Tensor,
    cells_MTBH: torch.Tensor,
) -> torch.Tensor:
    models, steps, rows, hidden = grad_MTBH.shape
    carried = grad_cell_MBH = torch.empty(models, rows, hidden, dtype=torch.float32, device=grad_MTBH.device)
    for step in reversed(range(steps)):
        if step + 1 < steps:
            carried = _float32_product(gates_MTB4H[:, step + 1], recurrent_M4HH)
        programs.backward_bar[(triton.cdiv(rows * hidden, CELLS), models)](
            grad_MTBH,
            carried,
            gates_MTB4H,
            cells_MTBH,
            grad_cell_MBH,
            step,
            steps,
            rows,
            HIDDEN=hidden,
            CELLS=CELLS,
        )
    return gates_MTB4H.flatten(1, 2).sum(1, keepdim=True, dtype=torch.float32)


def _float32_product(left_MXY: torch.Tensor, right_MYZ: torch.Tensor) -> torch.Tensor:
    if left_MXY.device.type == "cpu":  # Triton's interpreter
        return torch.bmm(left_MXY.float(), right_MYZ.float())
    return torch.bmm(left_MXY, right_MYZ, out_dtype=torch.float32)


def _options(recurrent_M4HH: torch.Tensor) -> dict[str, Any]:
    hidden = recurrent_M4HH.shape[2]
    return {
        "HIDDEN": hidden,
        "ROWS": ROWS,
        "UNITS": _units(hidden),
        "STAY": _weights_stay(recurrent_M4HH),
        "num_warps": WARPS,
        "num_stages": 1,  # more would keep several bars' weights
    }


def _units(hidden: int) -> int:
    """Return the next power of two, of which Triton's tensors are, and the least of a matrix unit."""
    return 1 << max(4, (hidden - 1).bit_length())


def _weights_stay(recurrent_M4HH: torch.Tensor) -> bool:
    """Return whether a program has room for all its weights, those of float32 in two parts. Otherwise it
    reads them at each bar, from caches.
    """
    if recurrent_M4HH.device.type == "cpu":  # Triton's interpreter
        return True
    parts = 2 if recurrent_M4HH.dtype == torch.float32 else 1
    weights = 4 * _units(recurrent_M4HH.shape[2]) ** 2 * recurrent_M4HH.element_size()
    chip: Any = torch.cuda.get_device_properties(recurrent_M4HH.device)
    return bool(parts * weights <= chip.shared_memory_per_block_optin - SPARE)
