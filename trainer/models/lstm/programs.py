"""The kernels that `kernels` starts, in Triton.

Shapes: H hidden size. Tensors are contiguous but for the strides that a kernel is given. Gates are in torch's
order: enter, forget, candidate, output.
"""

from __future__ import annotations

import triton
import triton.language as tl


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
def forward(
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
def backward(
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
def forward_bar(
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
def backward_bar(
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
