"""Device memory of training a model, and figures of a chip derived from it: models at a time, slices, batch
ceilings.

The formula counts what autograd keeps; it is not fitted. Tests hold it within 10 % of a count on a CPU, and
`benchmarks.memory` compares it with a GPU. A figure is `yours` (the user's profiles file), else `estimate`
(the formula). Figures change the speed of training and never the model: the batch is the job's, and a batch
that does not fit is sliced. Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from trainer.base.errors import UsageError
from trainer.base.settings import CHUNKS, CONTEXT, CONTEXT_BYTES, FLOAT, Training
from trainer.job.job import Job
from trainer.job.reading import job_from
from trainer.machines.chips import REFERENCE, GpuProfile
from trainer.machines.kernels import half_pays

GIB = 2**30
CPU = "cpu"  # the profile without a GPU
USABLE = 0.9  # share of the free memory: the allocator leaves gaps
PROCESS_GIB = 0.75  # CUDA's context and its libraries in one process; an estimate of 2026-11-21
# A persistent LSTM kernel's residency; an estimate of 2026-11-20.
BLOCKS_PER_MULTIPROCESSOR, WINDOWS_PER_BLOCK = 2, 16
FEWEST_STEPS = 100  # optimizer steps per epoch that a batch ceiling must leave
MINUTES_OF_SEVEN_YEARS = 7 * 365 * 24 * 60  # data of the listed ceilings: seven years of 24x7 bars
TIMEFRAME_MINUTES = {"1m": 1, "5m": 5, "15m": 15, "1h": 60, "4h": 240, "1d": 1440}
TRAINING_SHARE = 0.7
REFERENCE_FEATURES, REFERENCE_BATCH = 37, 256
LANE_COPIES = 4  # weights, gradients, two moments
# And modules for evaluation, and temporaries of the update over all rows.
STACKED_COPIES = LANE_COPIES + 1 + 6
# cuBLAS's for each stream on which steps are recorded: 8 MiB for the thread of each pass (train/precision.py)
STREAM_WORKSPACE = 2 * 8 * 2**20


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """Bytes of one model in training.

    `rows`: its symbol's bars. `weights`: with gradients, moments and average. `copies`: the best weights, and
    a checkpoint's state. `kept`: what the forward pass of a slice keeps for the backward pass. `workspace`:
    temporaries at the peak of the backward pass. `assumed`: the part of `kept` that can't be counted on a
    CPU, cuDNN's own.
    """

    rows: float
    weights: float
    copies: float
    kept: float
    workspace: float
    assumed: float = 0.0

    @property
    def step(self) -> float:
        """Return the peak of a step in bytes, as a device's allocator shows it, without the copies."""
        return self.rows + self.weights + self.kept + self.workspace

    @property
    def total(self) -> float:
        """Return the whole footprint in bytes."""
        return self.step + self.copies


def is_half(job: Job, *, on_gpu: bool) -> bool:
    """Return whether matrix products run in bf16 or fp16: with `auto` on a GPU where it pays, except for a
    user's own module.
    """
    if job.train.precision == "auto":
        is_full = job.model.is_any_module or job.target.acts
        return on_gpu and not is_full and half_pays(job.cost)
    return job.train.precision != "fp32"


def footprint(job: Job, *, features: int, bars: int, windows: int, on_gpu: bool = True) -> Footprint:
    """Return the footprint of one model of the job on `bars` bars, trained in slices of `windows` windows (or
    chunks).

    If the job leaves its strategy open, it is the larger of fused and not fused.
    """
    strategy = job.expert.strategy if job.model.has_stacked_form else ""
    kinds = {"auto": (False, True), "fused": (True,)}.get(strategy, (False,))
    options = [
        _footprint(job, features=features, bars=bars, reads=windows, on_gpu=on_gpu, fused=fused)
        for fused in kinds
    ]
    return max(options, key=lambda one: one.total)


def _footprint(job: Job, *, features: int, bars: int, reads: int, on_gpu: bool, fused: bool) -> Footprint:
    model, target = job.model, job.target
    cost = model.cost(features=target.features(features), outputs=target.outputs)
    stacked = model.has_stacked_form and job.expert.strategy != "sequential"
    training = Training(
        half=is_half(job, on_gpu=on_gpu),
        fused=fused,
        recompute=job.expert.activation_checkpointing,
        accumulates=reads < job.train.batch,
        frozen=cost.frozen > 0,
        on_gpu=on_gpu,
    )
    part = cost.activations(training, reads)
    weights, trained = FLOAT * cost.weights, FLOAT * cost.trained
    averages = 1 if job.train.ema else 0
    copies = STACKED_COPIES if stacked else LANE_COPIES - (1 if cost.counts_gradients else 0)
    numbers = (features + target.label_columns) * FLOAT * (2 if stacked else 1)  # stacked: a joined copy
    numbers += len(CONTEXT) * CONTEXT_BYTES if model.reads_context else 0
    return Footprint(
        rows=bars * (numbers + 2 * 8 / model.bars_out),  # two indices per window or chunk
        weights=(1 + averages) * weights + (copies - 1) * trained,
        copies=checkpoint_bytes(job, features=features) if job.train.checkpoint_seconds else weights,
        kept=part.kept,
        workspace=part.workspace + (STREAM_WORKSPACE if on_gpu and not fused else 0),
        assumed=part.assumed,
    )


def checkpoint_bytes(job: Job, *, features: int) -> float:
    """Return the bytes of a checkpoint of one model: weights, best weights, average, Adam's moments. 0 for a
    user's own model that nobody has measured.
    """
    cost = job.model.cost(features=job.target.features(features), outputs=job.target.outputs)
    return FLOAT * ((2 + (1 if job.train.ema else 0)) * cost.weights + 2 * cost.trained)


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A value and its source: `yours` or `estimate`."""

    value: Any
    basis: str


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Models of a job that fit on one GPU at a time, and their slices in windows (or chunks)."""

    models: int
    micro_batch: int
    memory_per_model_gib: float
    activation_checkpointing: bool = False


def room_gib(memory_gib: float) -> float:
    """Return the GiB of the free memory that models may use."""
    return max(0.0, memory_gib * USABLE - PROCESS_GIB)


def filling_models(profile: GpuProfile) -> int:
    """Return the number of reference models that keep the chip busy; more would wait for each other.

    multiprocessors x 2 resident blocks x 16 windows per block / 256 windows per batch; an estimate.
    """
    return max(1, profile.multiprocessors * BLOCKS_PER_MULTIPROCESSOR * WINDOWS_PER_BLOCK // REFERENCE_BATCH)


def batch_ceiling(room: float, job: Job, *, features: int, bars: int, on_gpu: bool) -> int:
    """Return the largest power of two that fits `room` GiB as one slice of one model, and leaves 100 steps
    per epoch.
    """
    most = int(bars * TRAINING_SHARE / FEWEST_STEPS)
    return max(1, _largest(room, job, most=most, features=features, bars=bars, on_gpu=on_gpu))


def chunk_slices(profile: GpuProfile, model: str) -> tuple[int, int]:
    """Return how many chunks of a full-size model fit at once, without and with activation checkpointing.

    Powers of two, by the formula, on seven years of minutes; 0 if not even one fits.
    """
    room, on_gpu, most = room_gib(profile.memory_gib), profile.name != CPU, 1 << 20
    plain = job_from({"model": {"name": model}, "train": {"batch": most}})
    again = plain.with_expert(activation_checkpointing=True)
    known: dict[str, Any] = {"features": REFERENCE_FEATURES, "bars": MINUTES_OF_SEVEN_YEARS, "on_gpu": on_gpu}
    return _largest(room, plain, most=most, **known), _largest(room, again, most=most, **known)


def _largest(room: float, job: Job, *, most: int, features: int, bars: int, on_gpu: bool) -> int:
    """Return the largest power of two up to `most` that fits `room` GiB as one slice of one model; 0 if none
    does.
    """
    size = 1
    while (
        size <= most
        and footprint(job, features=features, bars=bars, windows=size, on_gpu=on_gpu).total <= room * GIB
    ):
        size *= 2
    return size // 2


def batch_limit(
    profile: GpuProfile,
    job: Job,
    *,
    memory_gib: float,
    features: int,
    bars: int,
    windows: int,
    timeframe: str,
) -> int:
    """Return the largest power of two that `batch = "auto"` may choose.

    It is the user's ceiling for the timeframe (such as 5m), else the largest slice that fits `memory_gib` of
    free memory; but an epoch of `windows` training windows keeps at least 100 steps.
    """
    ceiling = profile.yours.get("batch", {}).get(timeframe) or batch_ceiling(
        room_gib(memory_gib), job, features=features, bars=bars, on_gpu=profile.name != CPU
    )
    return 1 << (max(1, min(int(ceiling), windows // FEWEST_STEPS)).bit_length() - 1)


def figures(profile: GpuProfile, *, memory_gib: float | None = None) -> dict[str, Figure]:
    """Return the figures of chips.FIGURES, each with its basis, for the reference model on seven years of
    bars.

    The batch ceilings are for as many models at a time as the profile says. `memory_gib` is what is free,
    where that is less than the profile's.
    """
    room = room_gib(profile.memory_gib if memory_gib is None else min(profile.memory_gib, memory_gib))
    known: dict[str, Any] = {"features": REFERENCE_FEATURES, "on_gpu": profile.name != CPU}
    part = footprint(REFERENCE, bars=MINUTES_OF_SEVEN_YEARS, windows=REFERENCE_BATCH, **known)

    def figure(key: str, estimate: Any) -> Figure:
        if key in profile.yours:
            return Figure(value=profile.yours[key], basis="yours")
        return Figure(value=estimate, basis="estimate")

    a_model = figure("memory_per_model_gib", round(part.total / GIB, 2))
    models = figure("models_per_gpu", max(1, min(filling_models(profile), int(room / a_model.value))))
    ceilings = _reference_ceilings(room / models.value, on_gpu=known["on_gpu"])
    batch = figure("batch", ceilings)
    return {
        "memory_per_model_gib": a_model,
        "models_per_gpu": models,
        "batch": replace(batch, value={**ceilings, **batch.value}),  # the user may set one timeframe only
        "windows_per_second": rate_figure(profile),
    }


def rate_figure(profile: GpuProfile) -> Figure:
    """Return the rate of the reference model on a chip, with its basis."""
    if "windows_per_second" in profile.yours:
        return Figure(value=profile.yours["windows_per_second"], basis="yours")
    return Figure(value=profile.windows_per_second, basis="estimate")


@cache  # a plan asks for a chip's figures at each count of its GPUs
def _reference_ceilings(room: float, *, on_gpu: bool) -> Mapping[str, int]:
    """Return the batch ceiling of the reference model in `room` GiB, for each timeframe."""
    bars = {timeframe: MINUTES_OF_SEVEN_YEARS // minutes for timeframe, minutes in TIMEFRAME_MINUTES.items()}
    return {
        timeframe: batch_ceiling(room, REFERENCE, features=REFERENCE_FEATURES, bars=number, on_gpu=on_gpu)
        for timeframe, number in bars.items()
    }


def fit(
    profile: GpuProfile,
    job: Job,
    *,
    memory_gib: float,
    features: int,
    bars: int,
    tuned: Job | None = None,
    measured_gib: float = 0.0,
) -> Fit:
    """Choose how many of a job's models train at a time in the free memory, and in which slices.

    `bars` are those of the longest symbol. `tuned` is the job with a trial's settings, and `measured_gib` the
    memory of one model in the trial, on other bars; it overrides the formula. The job's own settings are
    kept. Raises UsageError if the smallest slice of one model does not fit.
    """
    room, best = room_gib(memory_gib), tuned or job
    slices = slices_to_try(
        job, best, whole=best.train.batch or REFERENCE_BATCH, start=best.expert.micro_batch
    )
    for number, (candidate, windows) in enumerate(slices):
        part = footprint(candidate, features=features, bars=bars, windows=windows, on_gpu=profile.name != CPU)
        needed = part.total / GIB
        if number == 0 and measured_gib:
            needed = measured_gib + (part.rows + part.copies) / GIB
        if needed <= room:
            break
    else:
        raise UsageError(
            f"one model of {bars:,} bars needs {needed:.1f} GiB, {profile.name} has room for {room:.1f} GiB",
            why="by the memory formula, an estimate",
            do="Set data.bars lower, or take a larger GPU.",
        )
    known = figures(profile, memory_gib=memory_gib)["models_per_gpu"]
    filling = filling_models(profile) if known.basis == "estimate" else int(known.value)
    if job.model.reads == CHUNKS:
        filling = 1
    # Models of a sequential pack step in turn and share the memory of a step.
    shared = (part.kept + part.workspace) / GIB if candidate.expert.strategy == "sequential" else 0.0
    models = job.expert.pack or max(
        1, min(best.expert.pack or filling, int((room - shared) / max(needed - shared, part.rows / GIB)))
    )
    return Fit(
        models=models,
        micro_batch=windows,
        memory_per_model_gib=needed,
        activation_checkpointing=candidate.expert.activation_checkpointing,
    )


def slices_to_try(job: Job, first: Job, *, whole: int, start: int) -> Iterator[tuple[Job, int]]:
    """Yield (job, slice) to try: `first` with slices of `start` (0: the whole), then halved; if it can pay,
    the same with activation checkpointing. A slice that `job` names stays.
    """
    cost = job.cost
    again = (first.with_expert(activation_checkpointing=True),) if cost.recompute_pays else ()
    for candidate in dict.fromkeys((first, *again)):
        windows = min(start or whole, whole)
        yield candidate, windows
        while not job.expert.micro_batch and cost.may_slice and windows > 1:
            windows = (windows + 1) // 2
            yield candidate, windows
