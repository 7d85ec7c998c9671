"""The trial: train the job's models on this device with several candidates for a few seconds, and choose the
fastest.

`mayfly profiles tune` runs it. So does training before its workers start (`trainer.train.tuning.chosen`),
in a child process, which isolates the CUDA context, its memory and crashes.

It chooses slices, strategy, models at a time and activation checkpointing, which change the speed but not the
model, and the batch only for `batch = "auto"`. The most windows per second win: 10 it/s of 200 windows are as
fast as 1 it/s of 2,000. If every candidate is out of memory, slices are halved. A strategy for GPUs must
first agree with plain modules over ten steps; otherwise it is excluded and the reason is printed.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

import torch

from trainer.base.errors import TrainerError, UsageError
from trainer.base.settings import CHUNKS
from trainer.base.text import printable
from trainer.job.job import Job
from trainer.machines.choice import Choice
from trainer.machines.kernels import cpu_slice
from trainer.machines.measurements import GPU_PACKS, Entry, keep_here, shape_of
from trainer.machines.memory import REFERENCE_BATCH
from trainer.train.child_processes import ctrl_c_blocked, end_with_the_parent
from trainer.train.cpu import keep_freed_memory, use_one_thread
from trainer.train.packs.pack import Member
from trainer.train.packs.strategy import form_pack
from trainer.train.tuning.timing import (
    Candidate,
    Timing,
    disagreement,
    make_members,
    measure,
    reason_of,
    warm_up,
)
from trainer.train.workers.devices import choose_device

# Of timing before training, without loading torch and comparing strategies: at most, and of each candidate.
TRIAL_SECONDS, CANDIDATE_SECONDS = 12.0, 3.0
LIMIT_SECONDS = 60.0  # after which the process is killed
CPU_SLICES = (64, 128, 256)
MOST_CPU_SLICE = 512  # 1,024 are half as fast (hidden 128, AMD EPYC, 2026-11-21): beyond the cache
SMALLEST_AUTO_BATCH = 64
AS_FAST = 0.97  # of the highest rate: the smallest batch that reaches it is chosen, since it learns best
NO_TIME = "no time left"

Measure = Callable[[Candidate, Sequence[Member], Job, float], Timing]
Say = Callable[[str], None]


def candidates(job: Job, kind: str) -> list[Candidate]:
    """Return the candidates worth timing, for settings that the job leaves open.

    On a CPU: slices of one model, since batching models into one program is slower there. For a model without
    a stacked form, which fills a GPU alone: slices, with and without activation checkpointing if that can
    pay.
    """
    expert, cuda = job.expert, kind == "cuda"
    strategies, recompute = ["sequential"], {expert.activation_checkpointing}
    if job.model.has_stacked_form and expert.strategy != "auto":
        strategies = [expert.strategy]
    elif job.model.has_stacked_form and cuda and expert.compile != "always":
        strategies = ["sequential", "streams", "fused"]
    if cuda and job.cost.recompute_pays:
        recompute.add(True)
    packs = {strategy: GPU_PACKS if cuda and strategy != "sequential" else (1,) for strategy in strategies}
    return [
        Candidate(strategy=strategy, pack=pack, micro_batch=size, activation_checkpointing=again)
        for strategy in strategies
        for pack in ((expert.pack,) if expert.pack else packs[strategy])
        for size in ([expert.micro_batch] if expert.micro_batch else _slices(job, cuda=cuda))
        for again in sorted(recompute)
    ]


def _slices(job: Job, *, cuda: bool) -> list[int]:
    batch = job.train.batch
    if job.model.reads == CHUNKS and job.cost.may_slice:
        base = batch if cuda else cpu_slice(job.cost)
        sizes = {max(1, min(batch, size)) for size in (base // 4, base // 2, base, 2 * base)}
        return sorted(sizes, reverse=True)
    if cuda or not job.cost.may_slice:
        return [batch]
    return sorted({min(size, batch) for size in (*CPU_SLICES, MOST_CPU_SLICE)})


def halved(job: Job) -> list[Candidate]:
    """Return the candidates to try if nothing fits: plain modules in halved slices, then with activation
    checkpointing.
    """
    own, batch = job.expert.micro_batch, job.train.batch
    sizes = [own] if own else [size for size in (batch >> shift for shift in range(1, 12)) if size]
    if not job.cost.may_slice:
        return []
    given = job.expert.activation_checkpointing
    return [
        Candidate(strategy="sequential", pack=1, micro_batch=size, activation_checkpointing=again)
        for again in ([given] if given or job.model.is_any_module else [False, True])
        for size in sizes
    ]


def trial_seconds(job: Job, kind: str) -> float:
    """Return the time of a trial before training: less than TRIAL_SECONDS if there are few candidates."""
    if not job.train.batch:  # batches are candidates, too
        return TRIAL_SECONDS
    return min(TRIAL_SECONDS, CANDIDATE_SECONDS * len(candidates(job, kind)))


def tune(
    job: Job,
    device: torch.device,
    *,
    seconds: float,
    say: Say,
    batch_limit: int = 0,
    measured: Measure = measure,
    clock: Callable[[], float] = time.monotonic,
) -> list[Timing]:
    """Time the candidates for about `seconds` in all; return the timings, the chosen one first, the excluded
    last.

    For `batch = "auto"` half of the time goes to the other settings, half to the batch: the smallest power of
    two up to `batch_limit` that is within 3 % of the fastest.
    """
    warm_up(device)
    search = partial(_timed, device=device, say=say, measured=measured, clock=clock)
    if job.train.batch:
        return search(candidates(job, device.type), job, seconds=seconds)
    usual = job.with_train(batch=max(1, min(batch_limit, REFERENCE_BATCH)))
    first = search(candidates(usual, device.type), usual, seconds=seconds / 2)
    if first[0].excluded:
        return first
    best = first[0].candidate
    whole = not job.expert.micro_batch and best.micro_batch == usual.train.batch
    smallest = min(SMALLEST_AUTO_BATCH, batch_limit)
    options = [
        replace(best, batch=size, micro_batch=size if whole else min(size, best.micro_batch))
        for size in (1 << power for power in range(25))
        if smallest <= size <= batch_limit
    ]
    timings = search(options, usual, seconds=seconds / 2)
    if timings[0].excluded or not timings[0].candidate.batch:
        return [replace(first[0], candidate=replace(best, batch=usual.train.batch)), *timings, *first[1:]]
    least = AS_FAST * timings[0].windows_per_second
    enough = [timing for timing in timings if timing.windows_per_second >= least]
    chosen = min(enough, key=lambda timing: timing.candidate.batch)
    return [chosen, *(timing for timing in timings if timing is not chosen), *first]


def _timed(
    options: Sequence[Candidate],
    job: Job,
    device: torch.device,
    *,
    seconds: float,
    say: Say,
    measured: Measure,
    clock: Callable[[], float],
) -> list[Timing]:
    """Time each candidate once; if none fits, halve slices until one does. Return the timings,
    fastest first.
    """
    members = make_members(max(option.pack for option in options), job, device)
    refused = _refused(options, members, job, say)
    ends, timings = clock() + seconds, list[Timing]()
    for place, option in enumerate(options):
        left = ends - clock()
        reason = refused.get(option.strategy) or (NO_TIME if timings and left <= 0 else "")
        if reason:
            timings.append(Timing(candidate=option, excluded=reason))
        else:
            share = max(0.0, left) / (len(options) - place)
            timings.append(measured(option, members[: option.pack], job, share))
    if all(timing.excluded for timing in timings):
        for option in halved(job):
            timings.append(measured(option, members[:1], job, 0.0))
            if not timings[-1].excluded:
                break
    return sorted(timings, key=lambda timing: (bool(timing.excluded), -timing.windows_per_second))


def _refused(options: Iterable[Candidate], members: Sequence[Member], job: Job, say: Say) -> dict[str, str]:
    """Return the reason, by strategy, for those that don't agree with plain modules or fail on this chip."""
    refused: dict[str, str] = {}
    for strategy in sorted({option.strategy for option in options} - {"sequential"}):
        few = members[:3]
        try:
            reason = disagreement(form_pack(few, job.with_expert(strategy=strategy)), few, job)
        except RuntimeError as error:  # this chip, driver or library can't record it
            reason = reason_of(error)
        if reason:
            refused[strategy] = reason
            say(f"{strategy} is excluded: {reason}")
    return refused


def entry_of(best: Timing) -> Entry:
    """Return the chosen timing as a cache entry."""
    return {
        **asdict(best.candidate),
        "windows_per_second": round(best.windows_per_second, 1),
        "memory_per_model_gib": round(best.memory_per_model_gib, 3),
        "torch": torch.__version__,
        "date": date.today().isoformat(),
    }


def remember(choice: Choice, job: Job, best: Timing) -> Path:
    """Store the fastest settings for this job shape and profile in the cache; return its file. Raises
    OSError.
    """
    return keep_here(choice.profile.key, shape_of(job), entry_of(best))


def tune_here(
    job: Job, *, device: str, seconds: float, say: Say, batch_limit: int = 0
) -> tuple[Choice, list[Timing]]:
    """Tune the job on this machine's GPU, else on one core; return the profile and the timings, the chosen
    one first.

    `device` is auto, cpu or cuda. On a CPU, torch stays at one thread afterwards. Raises UsageError if no
    candidate works.
    """
    kind, choice = choose_device(job, device)
    if kind == "cpu":
        use_one_thread()
        keep_freed_memory()
    timings = tune(job, torch.device(kind), seconds=seconds, say=say, batch_limit=batch_limit)
    if timings[0].excluded:
        raise UsageError(
            "no strategy can train this job here",
            why=timings[0].excluded,
            do="Lower expert.micro_batch, or take a smaller model.",
        )
    return choice, timings


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """The timings of a trial, the chosen one first; if there are none, `failure` says why."""

    timings: tuple[Timing, ...] = ()
    failure: str = ""


def run_tuner(job: Job, *, device: str, seconds: float, batch_limit: int) -> Tuning:
    """Run the trial in a child process, for at most LIMIT_SECONDS; the child caches the result. Failures are
    not raised.
    """
    context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
    answer, failure = call_in_child(
        context, tune_and_tell, job, device, seconds, batch_limit, limit_seconds=LIMIT_SECONDS
    )
    return answer if isinstance(answer, Tuning) else Tuning(failure=failure)


def call_in_child(
    context: BaseContext, target: Callable[..., None], *arguments: object, limit_seconds: float | None = None
) -> tuple[Any, str]:
    """Call `target(pipe, *arguments)` in a child process; return what it sends and '', or None and why there
    is nothing.
    """
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=target, args=(theirs, *arguments), daemon=True)  # type: ignore[attr-defined]
    try:
        with ctrl_c_blocked():
            process.start()
        theirs.close()
        if ours.poll(limit_seconds):
            return ours.recv(), ""
        return None, f"it was not done after {limit_seconds:.0f} s"
    except EOFError:
        process.join()
        return None, f"its process ended with exit code {process.exitcode}"
    finally:
        if process.pid is not None:
            process.kill()
            process.join()
        ours.close()


def tune_and_tell(pipe: Connection, job: Job, device: str, seconds: float, batch_limit: int) -> None:
    """Run the trial, cache the result on this machine, and send it."""
    end_with_the_parent()

    def say(line: str) -> None:
        print(printable(line), file=sys.stderr, flush=True)

    try:
        choice, timings = tune_here(job, device=device, seconds=seconds, batch_limit=batch_limit, say=say)
    except TrainerError as error:
        pipe.send(Tuning(failure=str(error)))
        return
    try:
        remember(choice, job, timings[0])
    except OSError as error:  # such as a full disk: the next run tunes again
        say(f"the measurement can't be kept: {error}")
    pipe.send(Tuning(timings=tuple(timings)))
