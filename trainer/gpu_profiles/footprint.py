"""What training one model takes of a device's memory, part by part: counted from what autograd keeps, not fitted.

    rows       its symbol's bars on the device
    weights    weights, Adam's two moments, gradients (a TCN's are in the workspace); an average where the job has one
    copies     the best weights so far, and the copy that a checkpoint is written from
    kept       what the forward pass of one slice leaves for the backward pass
    workspace  what the backward pass holds besides, where it holds most

`benchmarks.memory` sets this beside a device, and tests beside a count of every tensor that autograd keeps on a CPU, within
10 %. One part can't be counted there: what cuDNN keeps of an LSTM layer for itself (RESERVE). Standard library only.

Letters: B windows or chunks of a slice, T bars of output, X bars read, F features, H hidden size, C channels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from trainer.config import Job

FLOAT, HALF = 4, 2  # bytes
# Hidden states a bar that cuDNN keeps of each LSTM layer: four gates, the cell, its tanh. An assumption of 2026-11-21: NVIDIA
# publishes no formula, and no GPU has been asked yet. Our own recurrence (`models.stacked_lstm`) keeps five, counted.
RESERVE = 6
OUR_RESERVE = 5
LANE_COPIES = 4  # weights, gradients, two moments
STACKED_COPIES = LANE_COPIES + 1 + 6  # the modules that evaluation fills, and what the update makes of all rows at once
STREAM_WORKSPACE = 2 * 8 * 2**20  # cuBLAS's, for each stream: 8 MiB for either pass's thread (train/precision.py)
KERNEL = 3  # of the TCN's convolutions, two a block


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """Bytes of one model in training. `assumed` is the part of `kept` that no count on a CPU can show: cuDNN's own."""

    rows: float
    weights: float
    copies: float
    kept: float
    workspace: float
    assumed: float = 0.0

    @property
    def step(self) -> float:
        """Return what a step takes at its peak: what a device's allocator shows of a model that is trained and not yet kept."""
        return self.rows + self.weights + self.kept + self.workspace

    @property
    def total(self) -> float:
        """Return all of it."""
        return self.step + self.copies


def is_half(job: Job, *, on_gpu: bool) -> bool:
    """Say whether matrix products run in bf16 or fp16: what a job that says `auto` does on a GPU."""
    return on_gpu if job.precision == "auto" else job.precision != "fp32"


def footprint(job: Job, *, features: int, bars: int, windows: int, on_gpu: bool = True) -> Footprint:
    """Return what one model of the job takes, trained in slices of `windows` windows (of a tcn: chunks), on so many bars.

    Where the job leaves its strategy open it is the dearer of both kinds.
    """
    half = is_half(job, on_gpu=on_gpu)
    if job.model == "tcn":
        return _tcn(job, features=features, bars=bars, chunks=windows, half=half)
    kinds = {"auto": (False, True), "fused": (True,)}.get(job.strategy, (False,))
    found = [_lstm(job, features=features, bars=bars, windows=windows, half=half, fused=fused) for fused in kinds]
    if on_gpu and job.strategy in ("auto", "streams"):  # a stream a model
        found[0] = replace(found[0], workspace=found[0].workspace + STREAM_WORKSPACE)
    return max(found, key=lambda one: one.total)


def num_weights(job: Job, *, features: int) -> int:
    """Return how many weights a model of the job has."""
    if job.model == "tcn":
        straight = job.width * (features + 1) if features != job.width else 0
        convolutions = sum(_convolution(inputs, job.width) + 4 * job.width for inputs in _inputs(job, features))
        return straight + convolutions + job.width + 1
    first = 4 * job.hidden * (features + job.hidden + 2)
    return first + (job.layers - 1) * 4 * job.hidden * (2 * job.hidden + 2) + job.hidden + 1


def _lstm(job: Job, *, features: int, bars: int, windows: int, half: bool, fused: bool) -> Footprint:
    """Return what an LSTM takes: of plain modules (lanes, streams), or of our own recurrence over stacked weights (fused).

    A layer keeps its reserve and its output; between layers lie what dropout left and its mask. Backwards a layer works in
    four gates' gradients, what comes in and what goes out. With checkpointing each keeps its input, and one is made again.
    """
    cells = job.lookback * windows * job.hidden
    inputs = job.lookback * windows * features
    number = FLOAT if fused or not half else HALF  # our recurrence keeps gates and cells in full precision
    reserve = (OUR_RESERVE if fused else RESERVE) * number * cells
    between = (job.layers - 1) * cells * (number + 1 if job.dropout else 0)
    backwards = (6.0 if job.layers > 1 else 5.0) * number * cells
    if fused:  # gradients of single bars, and where products are in half precision, what is cast for them
        backwards += 2.5 * number * cells if half else 9 * number * cells / job.lookback
    # Plain modules keep their first and last states, too, and in half precision the weights as they were cast.
    states = 0 if fused else 4 * job.layers * number * windows * job.hidden
    cast = HALF * num_weights(job, features=features) if half and not fused else 0
    if job.activation_checkpointing:
        last = cells * number if fused or not half else 0
        kept = FLOAT * inputs + last + (between or (job.layers - 1) * cells * number)
        assumed, workspace = 0, backwards + reserve + (0 if fused or not half else number * cells)
    else:
        kept = number * inputs + job.layers * (reserve + number * cells) + between + states + cast
        assumed, workspace = 0 if fused else job.layers * reserve, backwards
    stacked = job.strategy != "lanes"
    return Footprint(
        rows=bars * ((features + 1) * FLOAT * (2 if stacked else 1) + 2 * 8),  # stacked ones are joined; two indices a window
        **_weights(job, features, copies=STACKED_COPIES if stacked else LANE_COPIES),
        kept=kept,
        workspace=workspace,
        assumed=assumed,
    )


def _tcn(job: Job, *, features: int, bars: int, chunks: int, half: bool) -> Footprint:
    """Return what a TCN takes, block by block: backwards, what is kept goes while the gradients come.

    Where a batch has several slices, all gradients are there from the second on.
    """
    again, read = job.activation_checkpointing, job.chunk + job.bars_seen - 1
    accumulates, output = chunks < job.batch_chunks, 0.0
    gradients = FLOAT * num_weights(job, features=features)
    kept = FLOAT * chunks * features * read if again or not half else 0.0
    largest = later = float(gradients)  # of the blocks behind this one, and of the head
    for inputs, dilation in zip(_inputs(job, features), job.dilations, strict=True):
        block = _Block(job, chunks=chunks, inputs=inputs, read=read, dilation=dilation, half=half)
        later -= FLOAT * _convolution(inputs, job.width)
        held = gradients if accumulates else later
        largest = max(largest, held + (kept + block.again if again else kept + block.kept + block.backwards))
        kept += block.output if again else block.kept
        read, output = block.written, block.output
    if half and not job.dropout:  # the head has a copy in full precision
        kept += FLOAT * chunks * job.width * read - (output if again else 0.0)
    kept += chunks * read * (FLOAT + FLOAT + 1)  # outputs, errors, and which have a label
    return Footprint(
        rows=bars * ((features + 1) * FLOAT + 2 * 8 / job.chunk),
        **_weights(job, features, copies=LANE_COPIES - 1),  # gradients are in the workspace
        kept=kept,
        workspace=max(0.0, largest - kept),
    )


class _Block:
    """The bytes of one block: `kept`, its `output`, what its `backwards` pass holds besides, and with all made `again`."""

    def __init__(self, job: Job, *, chunks: int, inputs: int, read: int, dilation: int, half: bool) -> None:
        number, reach = (HALF if half else FLOAT), (KERNEL - 1) * dilation
        middle, self.written = read - reach, read - 2 * reach
        a_bar = chunks * job.width
        first, second = a_bar * middle, a_bar * self.written  # numbers that each convolution makes
        into = a_bar * read
        cast = half and bool(job.dropout)  # a mask is in full precision, and so is what it was laid on
        weights = number * _convolution(inputs, job.width)
        self.output = (FLOAT if cast else number) * second
        made = number * (first + second) + self.output + (number * first if job.dropout else 0)
        if half and (cast or inputs != job.width):
            made += number * chunks * inputs * read  # the input, cast
        if half and inputs != job.width:
            made += number * chunks * inputs * self.written  # and for the straight way
        self.kept = made + weights
        # Backwards: the gradient that goes straight through, and either both operands of the second convolution once more, as
        # a library lays them out, or under a mask the gradient in both precisions.
        one_weight = FLOAT * KERNEL * job.width**2
        self.backwards = (6 * second + 4 * into if cast else number * (2 * first + into)) + one_weight
        # Again: forwards all of it lies side by side for a moment, with the gradient that waits.
        waiting = (12 * second) if cast else number * (3 if job.dropout else 2) * second
        backwards = number * (2 * first + into) if not cast else 4 * into + 6 * second
        self.again = made + max(waiting, backwards) + 3 * one_weight


def _inputs(job: Job, features: int) -> list[int]:
    """Return how many channels each block is given."""
    return [features] + [job.width] * (job.blocks - 1)


def _convolution(inputs: int, width: int) -> int:
    """Return the numbers of a block's two kernels, biases aside."""
    return KERNEL * width * (inputs + width)


def _weights(job: Job, features: int, *, copies: int) -> dict[str, float]:
    one = FLOAT * num_weights(job, features=features)
    averages = 1 if job.ema else 0
    saved = 3 + averages if job.checkpoint_seconds else 0
    return {"weights": (copies + averages) * one, "copies": (1 + saved) * one}
