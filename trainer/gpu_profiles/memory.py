"""What follows from a model's footprint for a chip: models at a time, slices, and the largest batch by timeframe.

Each figure comes from the first of these that has it, and says which: `yours` (the user's profiles file), `measured <date>`
(the tuner's), `estimate` (the formula in `footprint`). They change the speed of training and never the model: a batch is the
job's, the ceiling is a limit for those who choose one, and what fits less is sliced. Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from trainer.errors import UsageError
from trainer.gpu_profiles.chips import GpuProfile
from trainer.gpu_profiles.footprint import Footprint, footprint
from trainer.job import Job, job_of, with_settings
from trainer.settings import CHUNKS

GIB = 2**30
CPU = "cpu"  # the profile without a GPU
USABLE = 0.9  # of the free memory: the allocator leaves gaps
PROCESS_GIB = 0.75  # CUDA's context and its libraries in one process; an estimate of 2026-11-21
BLOCKS_PER_MULTIPROCESSOR, WINDOWS_PER_BLOCK = 2, 16  # a persistent LSTM kernel's residency; an estimate of 2026-11-20
FEWEST_STEPS = 100  # optimizer steps an epoch below which a larger batch starves the training
MINUTES_OF_SEVEN_YEARS = 7 * 365 * 24 * 60  # what the listed ceilings are for: 24x7 bars of seven years
TIMEFRAME_MINUTES = {"1m": 1, "5m": 5, "15m": 15, "1h": 60, "4h": 240, "1d": 1440}
TRAINING_SHARE = 0.7
REFERENCE, REFERENCE_FEATURES, REFERENCE_BATCH = Job(), 37, 256  # the model that figures are for


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A value, and where it comes from: `yours`, `measured <date>` or `estimate`."""

    value: Any
    basis: str


@dataclass(frozen=True, kw_only=True)
class Fit:
    """How a job's models go onto one GPU: so many at a time, in slices of so many windows (or chunks)."""

    models: int
    micro_batch: int
    memory_per_model_gib: float
    activation_checkpointing: bool = False


def room_gib(memory_gib: float) -> float:
    """Return how much of the free memory models may take."""
    return max(0.0, memory_gib * USABLE - PROCESS_GIB)


def filling_models(profile: GpuProfile) -> int:
    """Return how many models of the reference size keep the chip busy: more of them only wait for each other.

    multiprocessors x 2 resident blocks x 16 windows a block / 256 windows a batch; an estimate.
    """
    return max(1, profile.multiprocessors * BLOCKS_PER_MULTIPROCESSOR * WINDOWS_PER_BLOCK // REFERENCE_BATCH)


def batch_ceiling(room: float, job: Job, *, features: int, bars: int, on_gpu: bool = True) -> int:
    """Return the largest power of two that fits `room` GiB as one slice of one model, and leaves 100 steps an epoch."""

    def fits(windows: int) -> bool:
        return footprint(job, features=features, bars=bars, windows=windows, on_gpu=on_gpu).total <= room * GIB

    batch = 1
    while 2 * batch * FEWEST_STEPS <= bars * TRAINING_SHARE and fits(2 * batch):
        batch *= 2
    return batch


def chunk_slices(profile: GpuProfile, model: str) -> tuple[int, int]:
    """Return how many chunks of a full-size model fit at once, without and with activation checkpointing: powers of two.

    By the formula, on seven years of minutes; 0 where not even one fits.
    """
    room = room_gib(profile.memory_gib) * GIB
    plain = job_of(model=model, batch=1 << 20)
    found = []
    for job in (plain, with_settings(plain, activation_checkpointing=True)):
        sizes = (
            1 << power
            for power in range(20, -1, -1)
            if _footprint(profile, job, features=REFERENCE_FEATURES, bars=MINUTES_OF_SEVEN_YEARS, windows=1 << power).total
            <= room
        )
        found.append(next(sizes, 0))
    return found[0], found[1]


def batch_limit(
    profile: GpuProfile, job: Job, *, memory_gib: float, features: int, bars: int, windows: int, timeframe: str
) -> int:
    """Return the largest power of two that `batch = "auto"` may become.

    That is the ceiling which the user or a tuner set for the timeframe (such as 5m), else what fits `memory_gib` of
    free memory as one slice; never more than leaves 100 steps in an epoch of `windows` training windows.
    """
    set_by_hand = {**profile.measured.get("batch", {}), **profile.yours.get("batch", {})}.get(timeframe)
    ceiling = set_by_hand or batch_ceiling(room_gib(memory_gib), job, features=features, bars=bars, on_gpu=profile.name != CPU)
    return 1 << (max(1, min(int(ceiling), windows // FEWEST_STEPS)).bit_length() - 1)


def figures(profile: GpuProfile, *, memory_gib: float | None = None) -> dict[str, Figure]:
    """Return the figures of chips.FIGURES, each with its basis, for the reference model on seven years of bars.

    The batch ceilings are for as many models at a time as the profile says. `memory_gib` is what is free, where that is less
    than the profile's.
    """
    room = room_gib(profile.memory_gib if memory_gib is None else min(profile.memory_gib, memory_gib))
    on_gpu = profile.name != CPU
    whole = _footprint(
        profile, REFERENCE, features=REFERENCE_FEATURES, bars=MINUTES_OF_SEVEN_YEARS, windows=REFERENCE_BATCH
    ).total
    needed = round(whole / GIB, 2)
    a_model = _figure(profile, "memory_per_model_gib", needed)
    models = _figure(profile, "models_per_gpu", max(1, min(filling_models(profile), int(room / a_model.value))))
    ceilings = {
        timeframe: batch_ceiling(
            room / models.value,
            REFERENCE,
            features=REFERENCE_FEATURES,
            bars=MINUTES_OF_SEVEN_YEARS // minutes,
            on_gpu=on_gpu,
        )
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
    return (job.model, job.train.batch) == (REFERENCE.model, REFERENCE_BATCH)


def with_rows_of_seven_years(measured_gib: float, *, rows: int) -> float:
    """Return what a reference model takes on seven years of bars, from what it took on few rows: rows can be counted."""
    few, many = (
        footprint(REFERENCE, features=REFERENCE_FEATURES, bars=bars, windows=0) for bars in (rows, MINUTES_OF_SEVEN_YEARS)
    )
    return measured_gib + (many.rows - few.rows) / GIB


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
    """Decide how many of a job's models train at a time in so much free memory, and in which slices.

    `bars` is the longest symbol's; `tuned` is the job as a tuner, which knew neither these bars nor this memory, would have it,
    and `measured_gib` what it saw one model take so: that wins over the formula. What the job itself says stands. Raises
    UsageError where the smallest slice of one model is too much.
    """
    room, best = room_gib(memory_gib), tuned or job
    for number, (way, windows) in enumerate(_ways(job, best)):
        part = _footprint(profile, way, features=features, bars=bars, windows=windows)
        needed = part.total / GIB
        if number == 0 and measured_gib:
            needed = measured_gib + (part.rows + part.copies) / GIB
        if needed <= room:
            break
    else:
        raise UsageError(
            f"one model of {bars:,} bars needs {needed:.1f} GiB, {profile.name} has room for {room:.1f} GiB",
            why="by the memory formula, an estimate",
            do="Set bars lower, or take a larger GPU.",
        )
    known = figures(profile, memory_gib=memory_gib)["models_per_gpu"]
    filling = 1 if job.model.reads == CHUNKS else filling_models(profile) if known.basis == "estimate" else int(known.value)
    # Models that train in turn, as lanes do, share the room for what a step keeps.
    shared = (part.kept + part.workspace) / GIB if way.train.strategy == "lanes" else 0.0
    models = job.train.pack or max(
        1, min(best.train.pack or filling, int((room - shared) / max(needed - shared, part.rows / GIB)))
    )
    return Fit(
        models=models,
        micro_batch=windows,
        memory_per_model_gib=needed,
        activation_checkpointing=way.train.activation_checkpointing,
    )


def _ways(job: Job, best: Job) -> Iterator[tuple[Job, int]]:
    """Yield ways to try: the tuned slice, then halved; where it pays, the same with activation checkpointing."""
    batch = best.train.batch or REFERENCE_BATCH
    again = with_settings(best, activation_checkpointing=True)
    for way in dict.fromkeys((best, again) if best.model.recompute_pays else (best,)):
        windows = min(best.train.micro_batch or batch, batch)
        yield way, windows
        while not job.train.micro_batch and windows > 1:
            windows = (windows + 1) // 2
            yield way, windows


def _footprint(profile: GpuProfile, job: Job, *, features: int, bars: int, windows: int) -> Footprint:
    return footprint(job, features=features, bars=bars, windows=windows, on_gpu=profile.name != CPU)


def _figure(profile: GpuProfile, key: str, estimate: Any) -> Figure:
    if key in profile.yours:
        return Figure(value=profile.yours[key], basis="yours")
    if key in profile.measured:
        return Figure(value=profile.measured[key], basis=f"measured {profile.measured['date']}")
    return Figure(value=estimate, basis="estimate")
