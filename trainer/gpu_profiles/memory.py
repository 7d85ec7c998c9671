"""How much memory training takes, and what follows for a chip: models at a time, and the largest batch by timeframe.

Each figure comes from the first of these that has it, and says which: `yours` (the user's profiles file), `measured <date>`
(the tuner's), `estimate` (the formulas here). They change the speed of training and never the model: a batch is the job's, the
ceiling is a limit for those who choose one, and what fits less is sliced. Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from trainer.config import Job
from trainer.errors import UsageError
from trainer.gpu_profiles.chips import GpuProfile

GIB = 2**30
USABLE = 0.9  # of the free memory: the allocator leaves gaps
PROCESS_GIB = 0.75  # CUDA's context and its libraries in one process; an estimate of 2026-11-21
ROW_COPIES = 2  # each symbol's rows, and the same in the pack's joined table
WEIGHT_COPIES = 6  # weights, gradients, two moments, the best weights, and what the update makes
KEPT_A_LAYER, BACKWARD_BUFFERS = 6.5, 9.0  # in hidden states of one bar; see model_gib
BLOCKS_PER_MULTIPROCESSOR, WINDOWS_PER_BLOCK = 2, 16  # a persistent LSTM kernel's residency; an estimate of 2026-11-20
FEWEST_STEPS = 100  # optimizer steps an epoch below which a larger batch starves the training
MINUTES_OF_SEVEN_YEARS = 7 * 365 * 24 * 60  # what the listed ceilings are for: 24x7 bars of seven years
TIMEFRAME_MINUTES = {"1m": 1, "5m": 5, "15m": 15, "1h": 60, "4h": 240, "1d": 1440}
TRAINING_SHARE = 0.7


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What an LSTM's memory depends on."""

    features: int
    hidden: int
    layers: int
    lookback: int


REFERENCE, REFERENCE_BATCH = Shape(features=37, hidden=64, layers=2, lookback=60), 256


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A value, and where it comes from: `yours`, `measured <date>` or `estimate`."""

    value: Any
    basis: str


@dataclass(frozen=True, kw_only=True)
class Fit:
    """How a job's models go onto one GPU: so many at a time, in slices of so many windows."""

    models: int
    micro_batch: int
    memory_per_model_gib: float


def model_gib(shape: Shape, *, bars: int, windows: int) -> float:
    """Return what one LSTM takes in training, in GiB: its symbol's rows, one slice's activations, weights and Adam, in float32.

        rows        bars x (features and label x 4 B x 2 copies + 2 window indices x 8 B)
        activations windows x (lookback x hidden x 4 B x (6.5 layers + 9) + input and its gradient)
        weights     count x 4 B x 6 copies

    Rows and weights are counted. Each layer keeps four gates, cell and output for the backward pass, which itself works in
    buffers of one layer's size: 6.5 and 9 are the best fit to peak memory on a CPU (1 to 3 layers, hidden 32 to 128, within
    5 %, torch 2.13, 2026-11-21). For a GPU they are an estimate.
    """
    rows = bars * ((shape.features + 1) * 4 * ROW_COPIES + 2 * 8)
    hidden = (KEPT_A_LAYER * shape.layers + BACKWARD_BUFFERS) * shape.hidden
    window = shape.lookback * 4 * (hidden + 2 * shape.features)
    first = 4 * shape.hidden * (shape.features + shape.hidden + 2)
    count = first + (shape.layers - 1) * 4 * shape.hidden * (2 * shape.hidden + 2) + shape.hidden + 1
    return (rows + windows * window + count * 4 * WEIGHT_COPIES) / GIB


def room_gib(memory_gib: float) -> float:
    """Return how much of the free memory models may take."""
    return max(0.0, memory_gib * USABLE - PROCESS_GIB)


def filling_models(profile: GpuProfile) -> int:
    """Return how many models of the reference size keep the chip busy: more of them only wait for each other.

    multiprocessors x 2 resident blocks x 16 windows a block / 256 windows a batch; an estimate.
    """
    return max(1, profile.multiprocessors * BLOCKS_PER_MULTIPROCESSOR * WINDOWS_PER_BLOCK // REFERENCE_BATCH)


def batch_ceiling(room: float, shape: Shape, *, bars: int) -> int:
    """Return the largest power of two that fits `room` GiB as one slice of one model, and leaves 100 steps an epoch."""
    batch = 1
    while 2 * batch * FEWEST_STEPS <= bars * TRAINING_SHARE and model_gib(shape, bars=bars, windows=2 * batch) <= room:
        batch *= 2
    return batch


def batch_limit(
    profile: GpuProfile, job: Job, *, memory_gib: float, features: int, bars: int, windows: int, timeframe: str
) -> int:
    """Return the largest power of two that `batch = "auto"` may become.

    That is the ceiling which the user or a tuner set for the timeframe (such as 5m), else what fits `memory_gib` of
    free memory as one slice; never more than leaves 100 steps in an epoch of `windows` training windows.
    """
    set_by_hand = {**profile.measured.get("batch", {}), **profile.yours.get("batch", {})}.get(timeframe)
    shape = Shape(features=features, hidden=job.hidden, layers=job.layers, lookback=job.lookback)
    ceiling = set_by_hand or batch_ceiling(room_gib(memory_gib), shape, bars=bars)
    return 1 << (max(1, min(int(ceiling), windows // FEWEST_STEPS)).bit_length() - 1)


def figures(profile: GpuProfile, *, memory_gib: float | None = None) -> dict[str, Figure]:
    """Return the figures of chips.FIGURES, each with its basis, for the reference model on seven years of bars.

    The batch ceilings are for as many models at a time as the profile says. `memory_gib` is what is free, where that is less
    than the profile's.
    """
    room = room_gib(profile.memory_gib if memory_gib is None else min(profile.memory_gib, memory_gib))
    needed = round(model_gib(REFERENCE, bars=MINUTES_OF_SEVEN_YEARS, windows=REFERENCE_BATCH), 2)
    a_model = _figure(profile, "memory_per_model_gib", needed)
    models = _figure(profile, "models_per_gpu", max(1, min(filling_models(profile), int(room / a_model.value))))
    ceilings = {
        timeframe: batch_ceiling(room / models.value, REFERENCE, bars=MINUTES_OF_SEVEN_YEARS // minutes)
        for timeframe, minutes in TIMEFRAME_MINUTES.items()
    }
    batch = _figure(profile, "batch", ceilings)
    return {
        "memory_per_model_gib": a_model,
        "models_per_gpu": models,
        "batch": replace(batch, value={**ceilings, **batch.value}),  # somebody may have a word on one timeframe only
        "windows_per_second": _figure(profile, "windows_per_second", profile.windows_per_second),
    }


def is_reference(job: Job) -> bool:
    """Say whether a job's models are of the size that figures are for: only what was measured of those is a figure."""
    shape = (job.model, job.hidden, job.layers, job.lookback, job.batch)
    return shape == ("lstm", REFERENCE.hidden, REFERENCE.layers, REFERENCE.lookback, REFERENCE_BATCH)


def with_rows_of_seven_years(measured_gib: float, *, rows: int) -> float:
    """Return what a reference model takes on seven years of bars, from what it took on few rows: rows can be counted."""
    few, many = (model_gib(REFERENCE, bars=bars, windows=0) for bars in (rows, MINUTES_OF_SEVEN_YEARS))
    return measured_gib + many - few


def fit(profile: GpuProfile, job: Job, *, memory_gib: float, features: int, bars: int, tuned: Job | None = None) -> Fit:
    """Decide how many of a job's models train at a time in so much free memory, and in which slices.

    `bars` is the longest symbol's; `tuned` is the job as a tuner, which knew neither these bars nor this memory, would have it.
    What the job itself says stands. Raises UsageError where one window of one model is too much.
    """
    shape = Shape(features=features, hidden=job.hidden, layers=job.layers, lookback=job.lookback)
    room = room_gib(memory_gib)
    best = tuned or job
    batch = best.batch or REFERENCE_BATCH
    micro_batch = min(best.micro_batch or batch, batch)
    while not job.micro_batch and micro_batch > 1 and model_gib(shape, bars=bars, windows=micro_batch) > room:
        micro_batch = (micro_batch + 1) // 2
    needed = model_gib(shape, bars=bars, windows=micro_batch)
    if needed > room:
        raise UsageError(
            f"one model of {bars:,} bars needs {needed:.1f} GiB, {profile.name} has room for {room:.1f} GiB",
            why="by the memory formula, an estimate",
            do="Set bars lower, or take a larger GPU.",
        )
    known = figures(profile, memory_gib=memory_gib)["models_per_gpu"]
    limit = best.pack or (filling_models(profile) if known.basis == "estimate" else int(known.value))
    models = job.pack or max(1, min(limit, int(room / needed)))
    return Fit(models=models, micro_batch=micro_batch, memory_per_model_gib=needed)


def _figure(profile: GpuProfile, key: str, estimate: Any) -> Figure:
    if key in profile.yours:
        return Figure(value=profile.yours[key], basis="yours")
    if key in profile.measured:
        return Figure(value=profile.measured[key], basis=f"measured {profile.measured['date']}")
    return Figure(value=estimate, basis="estimate")
