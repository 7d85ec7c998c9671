"""The bars of an LSTM's recurrence in Triton kernels, forward and backward, for many models at once.

Of small models one kernel takes all bars. A program owns some rows of one model: the recurrent weights, where
they fit, and the states stay on the chip, and of each bar only the gates, the cell state and the hidden state
pass through memory. Products of float32 are taken as three of TF32 (error 2^-21, as of a product in float32).

Of wider models, and on older chips, a bar is torch's product and one kernel for the rest.

Both sum products in float32.

Shapes: M models, T time steps, B batch, H hidden size, N programs of a model. Gates are in torch's order:
enter, forget, candidate, output.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from trainer.models.lstm import padded

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
        sums = cell_MBH = torch.empty(models, rows, hidden, dtype=torch.float32, device=gates_MTB4H.device)
        for step in range(steps):
            if step:
                sums = _float32_product(hidden_MTBH[:, step - 1], recurrent_M4HH.transpose(1, 2))
            _forward_bar[(triton.cdiv(rows * hidden, CELLS), models)](
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
        return
    _forward[(triton.cdiv(rows, ROWS), models)](
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
        carried = grad_cell_MBH = torch.empty(
            models, rows, hidden, dtype=torch.float32, device=grad_MTBH.device
        )
        for step in reversed(range(steps)):
            if step + 1 < steps:
                carried = _float32_product(gates_MTB4H[:, step + 1], recurrent_M4HH)
            _backward_bar[(triton.cdiv(rows * hidden, CELLS), models)](
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
    programs = triton.cdiv(rows, ROWS)
    sums_MN4H = torch.empty(models, programs, 4 * hidden, dtype=torch.float32, device=grad_MTBH.device)
    _backward[(programs, models)](
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


@triton.jit
def _product(left, right, total):
    return tl.dot(left, right, total, input_precision="tf32x3")


@triton.jit
def _load(place, apart, inside):
    """Return the numbers of four gates, which lie so many numbers apart."""
    first = tl.load(place, inside, 0.0)
    second = tl.load(place + apart, inside, 0.0)
    third = tl.load(place + 2 * apart, inside, 0.0)
    return first, second, third, tl.load(place + 3 * apart, inside, 0.0)


@triton.jit
def _store(place, apart, inside, enter, forget, candidate, output):
    number = place.dtype.element_ty
    tl.store(place, enter.to(number), inside)
    tl.store(place + apart, forget.to(number), inside)
    tl.store(place + 2 * apart, candidate.to(number), inside)
    tl.store(place + 3 * apart, output.to(number), inside)


@triton.jit
def _tanh(x):
    squared = x * x  # near zero the other form would lose digits
    series = x * (1 - squared * (1 / 3 - squared * (2 / 15 - squared * (17 / 315))))
    return tl.where(squared < 0.04, series, 2 * tl.sigmoid(2 * x) - 1)


@triton.jit
def _states(enter, forget, candidate, output, c):
    """Return the gates, the cell state and the hidden state of a bar, of sums and the cell state before."""
    enter, forget = tl.sigmoid(enter), tl.sigmoid(forget)
    candidate, output = _tanh(candidate), tl.sigmoid(output)
    c = forget * c + enter * candidate
    return enter, forget, candidate, output, c, output * _tanh(c)


@triton.jit
def _gradients(enter, forget, candidate, output, cell, before, grad_h, grad_c):
    """Return the gradients of a bar's four sums and of the cell state before it."""
    squashed = _tanh(cell)
    grad_c += grad_h * output * (1 - squashed * squashed)
    grad_enter = grad_c * candidate * enter * (1 - enter)
    grad_forget = grad_c * before * forget * (1 - forget)
    grad_candidate = grad_c * enter * (1 - candidate * candidate)
    grad_output = grad_h * squashed * output * (1 - output)
    return grad_enter, grad_forget, grad_candidate, grad_output, grad_c * forget


@triton.jit(do_not_specialize=["steps"])
def _forward(
    gates,
    recurrent,
    bias,
    earlier,
    hidden,
    cells,
    steps,
    rows,
    recurrent_model,  # numbers from one model's to the next
    bias_model,
    earlier_row,  # and from one row to the next
    HIDDEN: tl.constexpr,
    ROWS: tl.constexpr,
    UNITS: tl.constexpr,
    STAY: tl.constexpr,  # whether the weights do, on the chip
):
    row, unit, unit_in = _places(rows, ROWS, UNITS)
    model = tl.program_id(1).to(tl.int64)
    inside = (row < rows)[:, None] & (unit < HIDDEN)[None, :]
    square = (unit_in < HIDDEN)[:, None] & (unit < HIDDEN)[None, :]
    # Transposed: from hidden units of the bar before to a gate's.
    weight = recurrent + model * recurrent_model + unit[None, :] * HIDDEN + unit_in[:, None]
    if STAY:
        to_enter, to_forget, to_candidate, to_output = _load(weight, HIDDEN * HIDDEN, square)
    of_unit = bias + model * bias_model + unit
    bias_enter, bias_forget, bias_candidate, bias_output = _load(of_unit, HIDDEN, unit < HIDDEN)

    at = model * steps * rows + row  # rows before, in all tensors
    gate = gates + at[:, None] * 4 * HIDDEN + unit[None, :]
    state = at[:, None] * HIDDEN + unit[None, :]
    before = earlier + at[:, None] * earlier_row + unit[None, :]
    number = gates.dtype.element_ty
    h = tl.zeros((ROWS, UNITS), number)
    c = tl.zeros((ROWS, UNITS), tl.float32)
    next_enter, next_forget, next_candidate, next_output = _load(gate, HIDDEN, inside)
    for step in range(steps):
        enter = next_enter.to(tl.float32) + bias_enter.to(tl.float32)[None, :]
        forget = next_forget.to(tl.float32) + bias_forget.to(tl.float32)[None, :]
        candidate = next_candidate.to(tl.float32) + bias_candidate.to(tl.float32)[None, :]
        output = next_output.to(tl.float32) + bias_output.to(tl.float32)[None, :]
        following = gate + rows * 4 * HIDDEN  # read ahead: memory answers while this bar is computed
        more = inside & (step + 1 < steps)
        next_enter, next_forget, next_candidate, next_output = _load(following, HIDDEN, more)
        tl.store(before, h, inside)
        if not STAY:
            to_enter, to_forget, to_candidate, to_output = _load(weight, HIDDEN * HIDDEN, square)
        enter, forget = _product(h, to_enter, enter), _product(h, to_forget, forget)
        candidate, output = _product(h, to_candidate, candidate), _product(h, to_output, output)
        enter, forget, candidate, output, c, h = _states(enter, forget, candidate, output, c)
        h = h.to(number)
        _store(gate, HIDDEN, inside, enter, forget, candidate, output)
        tl.store(cells + state, c.to(number), inside)
        tl.store(hidden + state, h, inside)
        gate = following
        state += rows * HIDDEN
        before += rows * earlier_row


@triton.jit(do_not_specialize=["steps"])
def _backward(
    grad,
    gates,
    recurrent,
    cells,
    sums,
    steps,
    rows,
    recurrent_model,  # numbers from one model's to the next
    HIDDEN: tl.constexpr,
    ROWS: tl.constexpr,
    UNITS: tl.constexpr,
    STAY: tl.constexpr,  # whether the weights do, on the chip
):
    row, unit, unit_out = _places(rows, ROWS, UNITS)
    model = tl.program_id(1).to(tl.int64)
    inside = (row < rows)[:, None] & (unit < HIDDEN)[None, :]
    square = (unit_out < HIDDEN)[:, None] & (unit < HIDDEN)[None, :]
    weight = recurrent + model * recurrent_model + unit_out[:, None] * HIDDEN + unit[None, :]
    if STAY:
        of_enter, of_forget, of_candidate, of_output = _load(weight, HIDDEN * HIDDEN, square)

    at = (model * steps + steps - 1) * rows + row
    gate = gates + at[:, None] * 4 * HIDDEN + unit[None, :]
    state = at[:, None] * HIDDEN + unit[None, :]
    number = gates.dtype.element_ty
    next_enter, next_forget, next_candidate, next_output = _load(gate, HIDDEN, inside)
    next_grad = tl.load(grad + state, inside, 0.0)
    cell = tl.load(cells + state, inside, 0.0)
    next_before = tl.load(cells + state - rows * HIDDEN, inside & (steps > 1), 0.0)
    grad_h = tl.zeros((ROWS, UNITS), tl.float32)
    grad_c = tl.zeros((ROWS, UNITS), tl.float32)
    sum_enter = tl.zeros((ROWS, UNITS), tl.float32)
    sum_forget = tl.zeros((ROWS, UNITS), tl.float32)
    sum_candidate = tl.zeros((ROWS, UNITS), tl.float32)
    sum_output = tl.zeros((ROWS, UNITS), tl.float32)
    for step in range(steps):
        enter, forget = next_enter.to(tl.float32), next_forget.to(tl.float32)
        candidate, output = next_candidate.to(tl.float32), next_output.to(tl.float32)
        grad_h += next_grad.to(tl.float32)
        before = next_before
        following = gate - rows * 4 * HIDDEN
        state -= rows * HIDDEN
        more = inside & (step + 1 < steps)
        next_enter, next_forget, next_candidate, next_output = _load(following, HIDDEN, more)
        next_grad = tl.load(grad + state, more, 0.0)
        next_before = tl.load(cells + state - rows * HIDDEN, inside & (step + 2 < steps), 0.0)
        wide, earlier = cell.to(tl.float32), before.to(tl.float32)
        grad_enter, grad_forget, grad_candidate, grad_output, grad_c = _gradients(
            enter, forget, candidate, output, wide, earlier, grad_h, grad_c
        )
        grad_enter, grad_forget = grad_enter.to(number), grad_forget.to(number)
        grad_candidate, grad_output = grad_candidate.to(number), grad_output.to(number)
        _store(gate, HIDDEN, inside, grad_enter, grad_forget, grad_candidate, grad_output)
        sum_enter += grad_enter.to(tl.float32)
        sum_forget += grad_forget.to(tl.float32)
        sum_candidate += grad_candidate.to(tl.float32)
        sum_output += grad_output.to(tl.float32)
        cell = before
        if not STAY:
            of_enter, of_forget, of_candidate, of_output = _load(weight, HIDDEN * HIDDEN, square)
        grad_h = _product(grad_enter, of_enter, tl.zeros((ROWS, UNITS), tl.float32))
        grad_h = _product(grad_forget, of_forget, grad_h)
        grad_h = _product(grad_candidate, of_candidate, grad_h)
        grad_h = _product(grad_output, of_output, grad_h)
        gate = following
    of_program = sums + (model * tl.num_programs(0) + tl.program_id(0)) * 4 * HIDDEN + unit
    sums_of_unit = (
        tl.sum(sum_enter, 0),
        tl.sum(sum_forget, 0),
        tl.sum(sum_candidate, 0),
        tl.sum(sum_output, 0),
    )
    _store(of_program, HIDDEN, unit < HIDDEN, *sums_of_unit)


@triton.jit
def _places(rows, ROWS: tl.constexpr, UNITS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    return row, tl.arange(0, UNITS), tl.arange(0, UNITS)


@triton.jit(do_not_specialize=["step", "steps"])
def _forward_bar(
    sums,
    gates,
    bias,
    earlier,
    hidden,
    cells,
    cell,
    step,
    steps,
    rows,
    bias_model,  # numbers from one model's to the next
    earlier_row,  # and from one row to the next
    HIDDEN: tl.constexpr,
    CELLS: tl.constexpr,
):
    place, inside, row, unit, model = _cells(rows, HIDDEN, CELLS)
    number = gates.dtype.element_ty
    at = (model * steps + step) * rows + row
    gate, state = gates + at * 4 * HIDDEN + unit, at * HIDDEN + unit
    enter, forget, candidate, output = _load(gate, HIDDEN, inside)
    bias_enter, bias_forget, bias_candidate, bias_output = _load(
        bias + model * bias_model + unit, HIDDEN, inside
    )
    after_one = inside & (step > 0)
    of_cell = cell + model * rows * HIDDEN + place
    sum_enter, sum_forget, sum_candidate, sum_output = _load(
        sums + (model * rows + row) * 4 * HIDDEN + unit, HIDDEN, after_one
    )
    sum_enter += enter.to(tl.float32) + bias_enter.to(tl.float32)
    sum_forget += forget.to(tl.float32) + bias_forget.to(tl.float32)
    sum_candidate += candidate.to(tl.float32) + bias_candidate.to(tl.float32)
    sum_output += output.to(tl.float32) + bias_output.to(tl.float32)
    enter, forget, candidate, output, c, h = _states(
        sum_enter, sum_forget, sum_candidate, sum_output, tl.load(of_cell, after_one, 0.0)
    )
    h = h.to(number)
    _store(gate, HIDDEN, inside, enter, forget, candidate, output)
    tl.store(of_cell, c, inside)
    tl.store(cells + state, c.to(number), inside)
    tl.store(hidden + state, h, inside)
    before = earlier + at * earlier_row + unit
    tl.store(before, tl.zeros((CELLS,), number), inside & (step == 0))
    tl.store(before + rows * earlier_row, h, inside & (step + 1 < steps))


@triton.jit(do_not_specialize=["step", "steps"])
def _backward_bar(
    grad,
    carried,
    gates,
    cells,
    grad_cell,
    step,
    steps,
    rows,
    HIDDEN: tl.constexpr,
    CELLS: tl.constexpr,
):
    place, inside, row, unit, model = _cells(rows, HIDDEN, CELLS)
    at = (model * steps + step) * rows + row
    gate, state = gates + at * 4 * HIDDEN + unit, at * HIDDEN + unit
    of_bar = model * rows * HIDDEN + place
    after = inside & (step + 1 < steps)
    grad_h = tl.load(grad + state, inside, 0.0).to(tl.float32) + tl.load(carried + of_bar, after, 0.0)
    enter, forget, candidate, output = _load(gate, HIDDEN, inside)
    cell = tl.load(cells + state, inside, 0.0)
    before = tl.load(cells + state - rows * HIDDEN, inside & (step > 0), 0.0)
    grad_enter, grad_forget, grad_candidate, grad_output, grad_c = _gradients(
        enter.to(tl.float32),
        forget.to(tl.float32),
        candidate.to(tl.float32),
        output.to(tl.float32),
        cell.to(tl.float32),
        before.to(tl.float32),
        grad_h,
        tl.load(grad_cell + of_bar, after, 0.0),
    )
    _store(gate, HIDDEN, inside, grad_enter, grad_forget, grad_candidate, grad_output)
    tl.store(grad_cell + of_bar, grad_c, inside)


@triton.jit
def _cells(rows, HIDDEN: tl.constexpr, CELLS: tl.constexpr):
    """Return a program's cells of one bar: their places, whether they are any, rows, units, and the model."""
    place = tl.program_id(0) * CELLS + tl.arange(0, CELLS)
    return place, place < rows * HIDDEN, place // HIDDEN, place % HIDDEN, tl.program_id(1).to(tl.int64)
