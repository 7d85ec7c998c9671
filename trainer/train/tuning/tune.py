"""Measure how this device trains the job's models fastest, and keep the answer for the next run.

`mayfly tune` calls it, and a training that is long enough, in a process of its own (`trainer.train.tuning.tuner_process`).

Chosen are slices, strategy, models at a time and activation checkpointing: what changes the speed and not the model. Batch and
learning rate are the job's, but for a job that says `batch = "auto"`. Each candidate takes steps on rows of the real shape
for its share of the time; the one with the most windows a second wins. Steps a second say little: 10 it/s of 200 windows are
as fast as 1 it/s of 2,000. Out of memory is an answer, too. A strategy for GPUs must first agree with plain modules over ten
steps, or it is excluded and the reason is printed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import torch

from trainer.errors import UsageError
from trainer.gpu_profiles.chips import write_measured
from trainer.gpu_profiles.choice import Choice
from trainer.gpu_profiles.memory import REFERENCE_BATCH, is_reference, with_rows_of_seven_years
from trainer.gpu_profiles.tuned import keep_here, key_of, shape_of
from trainer.job import Job, with_settings
from trainer.settings import CHUNKS
from trainer.train.cpu import keep_freed_memory, use_one_thread
from trainer.train.packs.pack import Member
from trainer.train.packs.strategy import form_pack
from trainer.train.tuning.placement import choose_device
from trainer.train.tuning.timing import (
    ROWS,
    Candidate,
    Timing,
    disagreement,
    make_members,
    measure,
    reason_of,
    warm_up,
)

MOST_SECONDS = 60.0  # for all candidates together
DEFAULT_SECONDS = 20.0
MOST_SECONDS_EACH = 1.0  # of one turn of one candidate: more tells nothing new
ROUNDS = 3  # in turn, the best counts: a disturbed moment hits one
SETUP_SHARE = 0.3  # of a turn: forming the pack, warming it up
CPU_SLICES = (64, 128, 256)
MOST_CPU_SLICE = 512  # 1,024 are half as fast (hidden 128, AMD EPYC, 2026-11-21): beyond the cache
GPU_PACKS = (1, 4, 8, 16, 32)
SMALLEST_AUTO_BATCH = 64
AS_FAST = 0.97  # of the fastest: a batch that reaches this is as good, and the smallest of those learns best
NO_TIME = "no time left"

Measure = Callable[[Candidate, Sequence[Member], Job, float], Timing]


def candidates(job: Job, kind: str) -> list[Candidate]:
    """Return what is worth timing, as far as the job leaves it open.

    On a CPU that is one model's slices: batching models into one program loses there. A model without a stacked form fills a
    GPU by itself: there it is slices, and where it pays, with and without activation checkpointing.
    """
    model = job.model
    slices = [job.train.micro_batch] if job.train.micro_batch else _slices(job, kind)
    recompute = (
        {job.train.activation_checkpointing, True}
        if kind == "cuda" and model.recompute_pays
        else {job.train.activation_checkpointing}
    )
    strategies = (
        [job.train.strategy] if job.train.strategy != "auto" else ["lanes"] if kind == "cpu" else ["lanes", "streams", "fused"]
    )
    found = []
    for strategy in strategies if model.has_stacked_form else ["lanes"]:
        packs = [job.train.pack] if job.train.pack else GPU_PACKS if kind == "cuda" and strategy != "lanes" else [1]
        found += [
            Candidate(strategy=strategy, pack=pack, micro_batch=size, activation_checkpointing=again)
            for pack in packs
            for size in slices
            for again in sorted(recompute)
        ]
    return found


def _slices(job: Job, kind: str) -> list[int]:
    if job.model.reads == CHUNKS:
        base = job.model.cpu_slice if kind == "cpu" else job.train.batch
        return sorted({max(1, min(job.train.batch, size)) for size in (base // 4, base // 2, base, 2 * base)}, reverse=True)
    if kind == "cuda":
        return [job.train.batch]
    return sorted({min(size, job.train.batch) for size in (*CPU_SLICES, min(job.train.batch, MOST_CPU_SLICE))})


def smaller(job: Job) -> list[Candidate]:
    """Return what is tried where nothing fits: plain modules in ever smaller slices, then with checkpointing, too."""
    sizes = (
        [job.train.micro_batch]
        if job.train.micro_batch
        else [size for size in (job.train.batch >> shift for shift in range(1, 12)) if size]
    )
    recompute = [True] if job.train.activation_checkpointing else [False, True]
    return [
        Candidate(strategy="lanes", pack=1, micro_batch=size, activation_checkpointing=again)
        for again in recompute
        for size in sizes
    ]


def tune(
    job: Job,
    device: torch.device,
    *,
    seconds: float,
    say: Callable[[str], None],
    batch_limit: int = 0,
    measured: Measure = measure,
    clock: Callable[[], float] = time.monotonic,
) -> list[Timing]:
    """Time every candidate within about `seconds` in all; return the timings, the chosen first, those that are out last.

    A job with `batch = "auto"` needs the largest batch there may be: then the fastest way is looked for first, and for that one
    the batch; the smallest within 3 % of the fastest is chosen.
    """
    ends = clock() + seconds
    warm_up(device)
    if job.train.batch:
        return _ordered(_timed(candidates(job, device.type), job, device, ends=ends, say=say, measured=measured, clock=clock))
    batch = max(1, min(batch_limit, REFERENCE_BATCH))
    given, job = job, with_settings(job, batch=batch)
    search = partial(_timed, device=device, say=say, measured=measured, clock=clock)
    first = _ordered(search(candidates(job, device.type), job, ends=(clock() + ends) / 2))
    best = first[0]
    if best.excluded:
        return first
    whole = not given.train.micro_batch and best.candidate.micro_batch == batch
    sizes = [1 << power for power in range(25) if min(SMALLEST_AUTO_BATCH, batch_limit) <= 1 << power <= batch_limit]
    options = [
        replace(best.candidate, batch=size, micro_batch=size if whole else min(size, best.candidate.micro_batch))
        for size in sizes
    ]
    found = _ordered(search(options, job, ends=ends))
    enough = [timing for timing in found if timing.windows_per_second >= AS_FAST * found[0].windows_per_second]
    if found[0].excluded:
        return [replace(best, candidate=replace(best.candidate, batch=batch)), *found, *first[1:]]
    chosen = min(enough, key=lambda timing: timing.candidate.batch)
    return [chosen, *(timing for timing in found if timing is not chosen), *first]


def _timed(
    options: Sequence[Candidate],
    job: Job,
    device: torch.device,
    *,
    ends: float,
    say: Callable[[str], None],
    measured: Measure,
    clock: Callable[[], float],
) -> Iterable[Timing]:
    """Time candidates in turn until time is up. Nothing that fits is a reason to try smaller ones."""
    members = make_members(max(option.pack for option in options), job, device)
    refused = _refused(options, members, job, say)
    found: dict[Candidate, Timing] = {}
    longest = 0.0  # that a turn took so far, setup and all
    for number in range(ROUNDS):
        for place, option in enumerate(options):
            before = found.get(option)
            if option.strategy in refused:
                found[option] = Timing(candidate=option, excluded=refused[option.strategy])
                continue
            if before is not None and before.excluded:
                continue
            left = ends - clock()
            if left <= longest and found:
                found.setdefault(option, Timing(candidate=option, excluded=NO_TIME))
                continue
            began = clock()
            turns = (ROUNDS - number) * len(options) - place
            timing = measured(
                option, members[: option.pack], job, min(MOST_SECONDS_EACH, max(0.0, left / turns) * (1 - SETUP_SHARE))
            )
            found[option] = max(before or timing, timing, key=lambda one: one.windows_per_second)
            longest = max(longest, clock() - began)
    if all(timing.excluded for timing in found.values()):
        for option in smaller(job):
            if clock() >= ends:
                break
            found[option] = measured(option, members[:1], job, min(MOST_SECONDS_EACH, ends - clock()))
            if not found[option].excluded:
                break
    return found.values()


def _refused(options: Sequence[Candidate], members: Sequence[Member], job: Job, say: Callable[[str], None]) -> dict[str, str]:
    """Return the strategies that don't agree with plain modules or fail on this chip, each with the reason."""
    refused: dict[str, str] = {}
    for strategy in sorted({option.strategy for option in options} - {"lanes"}):
        few = members[:3]
        try:
            reason = disagreement(form_pack(few, with_settings(job, strategy=strategy)), few, job)
        except RuntimeError as error:  # a chip, driver or library that can't record it: the others go on
            reason = reason_of(error)
        if reason:
            refused[strategy] = reason
            say(f"{strategy} is excluded: {reason}")
    return refused


def _ordered(timings: Iterable[Timing]) -> list[Timing]:
    return sorted(timings, key=lambda timing: (bool(timing.excluded), -timing.windows_per_second))


def entry_of(best: Timing) -> dict[str, Any]:
    """Return what is kept of the chosen way; see `gpu_profiles.tuned`."""
    return {
        **asdict(best.candidate),
        "windows_per_second": round(best.windows_per_second, 1),
        "memory_per_model_gib": round(best.memory_per_model_gib, 3),
        "torch": torch.__version__,
        "date": date.today().isoformat(),
    }


def remember(choice: Choice, job: Job, best: Timing) -> Path:
    """Keep the fastest way for this shape of job on this profile; return the file. Raises OSError where it can't be written."""
    path = keep_here(key_of(choice.profile), shape_of(job), entry_of(best))
    if is_reference(job) and choice.profile.share == 1:
        figures: dict[str, Any] = {"windows_per_second": round(best.windows_per_second)}
        if best.memory_per_model_gib:
            memory_gib = with_rows_of_seven_years(best.memory_per_model_gib, rows=ROWS)
            figures.update(memory_per_model_gib=round(memory_gib, 3), models_per_gpu=best.candidate.pack)
        write_measured(choice.profile.name, figures, date=date.today().isoformat())
    return path


def tune_here(
    job: Job, *, device: str, seconds: float, say: Callable[[str], None], batch_limit: int = 0
) -> tuple[Choice, list[Timing]]:
    """Tune the job on this machine's GPU, else on one core; return the profile and the timings, the chosen first.

    `device` is auto, cpu or cuda. On a CPU it leaves torch at one thread. Raises UsageError for a job that fits in no way.
    """
    kind, choice = choose_device(job, device)
    if kind == "cpu":
        use_one_thread()
        keep_freed_memory()
    timings = tune(job, torch.device(kind), seconds=min(MOST_SECONDS, seconds), say=say, batch_limit=batch_limit)
    if timings[0].excluded:
        raise UsageError("no way to train this job works here", why=timings[0].excluded, do="Set micro_batch or hidden lower.")
    return choice, timings


def told(job: Job, choice: Choice, timings: Sequence[Timing]) -> list[str]:
    """Return the table for people, with the sentence that says how to read it."""
    steps = f"of {job.train.batch} {job.model.reads}" if job.train.batch else "of batches that differ"
    reading = f"Most {job.model.reads} a second wins; it/s are {steps} and mislead."
    return [f"{choice.profile.name}: {choice.why}. {reading}", *(_line(timing, job.model.reads) for timing in timings)]


def _line(timing: Timing, kind: str) -> str:
    option = timing.candidate
    batch = f"batch {option.batch:6,}  " if option.batch else ""
    again = "  checkpointing" if option.activation_checkpointing else ""
    name = f"{batch}{option.strategy:8} pack {option.pack:3}  slices of {option.micro_batch:5}{again}"
    if timing.excluded:
        return f"{name}  excluded: {timing.excluded}"
    memory = f"  {timing.memory_per_model_gib:.2f} GiB a model" if timing.memory_per_model_gib else ""
    speed = f"{timing.windows_per_second:10,.0f}" if timing.windows_per_second >= 100 else f"{timing.windows_per_second:10,.2f}"
    return f"{name}  {speed} {kind}/s  {timing.steps_per_second:8.1f} it/s{memory}"
