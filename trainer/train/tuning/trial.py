"""The trial: train the job's models on this device for a few seconds by each strategy, and choose the fastest
of those that agree with plain modules.

Every training on a GPU of models that have several strategies begins with one
(`trainer.train.tuning.chosen`), in a child process, which isolates the CUDA context, its memory and crashes.
`mayfly profiles tune` prints one.

A strategy trains as many models as the GPU would, since their number decides which is the fastest. Its losses
are compared with plain modules' over ten steps. One that runs out of memory is tried again with half as many
models. `batch = "auto"` is then the smallest power of two that is within 3 % of the fastest.
"""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection

import torch

from trainer.base.errors import TrainerError, UsageError
from trainer.base.text import printable
from trainer.job.job import Job
from trainer.machines.choice import Choice
from trainer.machines.kernels import cpu_slice
from trainer.machines.memory import REFERENCE_BATCH
from trainer.machines.shapes import MODELS_AT_A_TIME, Entry
from trainer.train.child_processes import call_in_child, end_with_the_parent
from trainer.train.cpu import keep_freed_memory, use_one_thread
from trainer.train.packs.pack import Member
from trainer.train.precision import matmul_dtype
from trainer.train.tuning.timing import (
    COMPARED_STEPS,
    OUT_OF_MEMORY,
    Timing,
    make_members,
    measure,
    warm_up,
)
from trainer.train.workers.devices import choose_device

TRIAL_SECONDS = 3.0  # of timing, without loading torch and recording graphs
LIMIT_SECONDS = 60.0  # after which the process is killed
STRATEGIES = ("streams", "fused")  # that are compared with plain modules
COMPARED_MODELS = 3
TOLERANCE, HALF_TOLERANCE = 1e-3, 1e-2  # of a loss, relative
SMALLEST_AUTO_BATCH = 64
AS_FAST = 0.97  # of the highest rate: the smallest batch that reaches it is chosen, since it learns best

Measure = Callable[..., Timing]
Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Trial:
    """The timings of a trial, the chosen one first; if there are none, `failure` says why."""

    timings: tuple[Timing, ...] = ()
    failure: str = ""


def candidates(job: Job, kind: str) -> list[Job]:
    """Return the job with each strategy to compare, plain modules first and often alone: no other model has a
    stacked form, which fills a GPU.
    """
    expert, cpu = job.expert, kind == "cpu"
    usual = cpu_slice(job.cost) if cpu and job.cost.may_slice else job.train.batch
    slices = min(expert.micro_batch or usual, job.train.batch)
    plain = job.with_expert(strategy="sequential", pack=expert.pack or 1, micro_batch=slices)
    is_stacked = job.model.has_stacked_form and expert.compile != "always"
    named = STRATEGIES if expert.strategy == "auto" else (expert.strategy,)
    others = [one for one in STRATEGIES if one in named] if is_stacked else []
    pack = expert.pack or MODELS_AT_A_TIME
    return [plain, *(plain.with_expert(strategy=strategy, pack=pack) for strategy in others)]


def has_choice(job: Job, kind: str) -> bool:
    """Return whether a trial has something to compare: not for agents, whose program is one."""
    if job.target.acts:
        return False
    sized = job.with_train(batch=job.train.batch or REFERENCE_BATCH)
    return len(candidates(sized, kind)) > 1 or not job.train.batch


def compare(
    job: Job,
    device: torch.device,
    *,
    seconds: float,
    say: Say,
    batch_limit: int = 0,
    timed: Measure = measure,
) -> list[Timing]:
    """Time each candidate, about `seconds` in all; return the timings, the chosen one first, the excluded
    last.
    """
    usual = job.with_train(batch=job.train.batch or max(1, min(batch_limit, REFERENCE_BATCH)))
    plain, *others = candidates(usual, device.type)
    share, most = seconds / (1 + len(others)), max(option.expert.pack for option in (plain, *others))
    members = make_members(max(most, COMPARED_MODELS if others else 1), usual, device)
    few = members[: COMPARED_MODELS if others else 1]
    first = timed(plain, few, share, steps=COMPARED_STEPS)
    timings = [first, *(_against(first, option, members, share, timed) for option in others)]
    for timing in timings:
        if timing.excluded:
            say(f"{timing.strategy} is excluded: {timing.excluded}")
    best, *rest = sorted(timings, key=lambda one: _order(one, job))
    if job.train.batch or best.excluded:
        return [best, *rest]
    return [*_batches(usual, device.type, best, members, batch_limit, share, timed), best, *rest]


def _order(timing: Timing, job: Job) -> tuple[bool, bool, float]:
    """Sort the excluded last, and a strategy that the job names first."""
    return bool(timing.excluded), timing.strategy != job.expert.strategy, -timing.windows_per_second


def _against(first: Timing, option: Job, members: Sequence[Member], seconds: float, timed: Measure) -> Timing:
    """Time a strategy with as many models as the memory takes, and compare its losses with plain modules'."""
    if first.excluded:
        return Timing.of(option, excluded=f"plain modules: {first.excluded}")
    timing = timed(option, members[: option.expert.pack], seconds, steps=COMPARED_STEPS)
    while timing.excluded == OUT_OF_MEMORY and option.expert.pack > 1:
        option = option.with_expert(pack=option.expert.pack // 2)
        timing = timed(option, members[: option.expert.pack], seconds, steps=COMPARED_STEPS)
    half = matmul_dtype(option, members[0].rows_TF.device) != torch.float32
    return timing if timing.excluded else replace(timing, excluded=disagreement(first, timing, half=half))


def disagreement(plain: Timing, other: Timing, *, half: bool) -> str:
    """Return '' if the losses of the first steps agree, for the models that both trained, else how they
    differ.
    """
    allowed, models = HALF_TOLERANCE if half else TOLERANCE, min(len(plain.losses[0]), len(other.losses[0]))
    expected, seen = (
        torch.tensor([step[:models] for step in one.losses], dtype=torch.float64) for one in (plain, other)
    )
    worst = float(((seen - expected) / expected).abs().nan_to_num(torch.inf).max())
    if worst <= allowed:
        return ""
    return f"its losses differ by {worst:.1e} within {len(expected)} steps, {allowed:.0e} is allowed"


def _batches(
    job: Job, kind: str, best: Timing, members: Sequence[Member], limit: int, seconds: float, timed: Measure
) -> list[Timing]:
    """Time batches up to `limit` by the best strategy; return the timings, the smallest of the fastest
    first.
    """
    beside = members[: best.pack if best.strategy != "sequential" else 1]
    timings: list[Timing] = []
    for size in (1 << power for power in range(25)):
        if min(SMALLEST_AUTO_BATCH, limit) <= size <= limit:
            options = candidates(job.with_train(batch=size), kind)
            option = next(one for one in options if one.expert.strategy == best.strategy)
            timings.append(timed(option.with_expert(pack=best.pack), beside, seconds / 4))
            if timings[-1].excluded:
                break
    least = AS_FAST * max((one.windows_per_second for one in timings), default=0.0)
    fast = [one for one in timings if not one.excluded and one.windows_per_second >= least]
    return sorted(timings, key=lambda one: one is not (fast or timings)[0])


def entry_of(best: Timing) -> Entry:
    """Return the chosen timing as settings. The memory of plain modules is 0: the formula gives it for any
    number of them.
    """
    stacked = best.strategy != "sequential"
    return {
        "strategy": best.strategy,
        "pack": best.pack,
        "micro_batch": best.micro_batch,
        "activation_checkpointing": best.activation_checkpointing,
        "batch": best.batch,
        "memory_per_model_gib": round(best.memory_per_model_gib, 3) if stacked else 0.0,
        "torch": torch.__version__,
    }


def compare_here(
    job: Job, *, device: str, seconds: float, say: Say, batch_limit: int = 0
) -> tuple[Choice, list[Timing]]:
    """Run the trial on this machine's GPU, else on one core; return the profile and the timings, the chosen
    one first.

    `device` is auto, cpu or cuda. On a CPU, torch stays at one thread afterwards. Raises UsageError if no
    candidate works, and for agents.
    """
    if job.target.acts:
        why = "its agents are one program on any device, whose actions differ after a rounding"
        do = "Train it: the rate is in its progress."
        raise UsageError("a trial has nothing to compare for agents", why=why, do=do)
    kind, choice = choose_device(job, device)
    if kind == "cpu":
        use_one_thread()
        keep_freed_memory()
    warm_up(torch.device(kind))
    timings = compare(job, torch.device(kind), seconds=seconds, say=say, batch_limit=batch_limit)
    if timings[0].excluded:
        raise UsageError(
            "no strategy can train this job here",
            why=timings[0].excluded,
            do="Lower expert.micro_batch, or take a smaller model.",
        )
    return choice, timings


def run_trial(job: Job, *, device: str, seconds: float, batch_limit: int) -> Trial:
    """Run the trial in a child process, for at most LIMIT_SECONDS. Failures are not raised."""
    # Of a server that has loaded torch, and has no CUDA context, which would not survive a fork.
    multiprocessing.set_forkserver_preload(["torch", __name__])
    context = multiprocessing.get_context("forkserver")
    answer, failure = call_in_child(
        context, compare_and_send, job, device, seconds, batch_limit, limit_seconds=LIMIT_SECONDS
    )
    return answer if isinstance(answer, Trial) else Trial(failure=failure)


def compare_and_send(pipe: Connection, job: Job, device: str, seconds: float, batch_limit: int) -> None:
    """Run the trial and send it."""
    end_with_the_parent()

    def say(line: str) -> None:
        print(printable(line), file=sys.stderr, flush=True)

    try:
        _, timings = compare_here(job, device=device, seconds=seconds, batch_limit=batch_limit, say=say)
    except TrainerError as error:
        pipe.send(Trial(failure=str(error)))
        return
    pipe.send(Trial(timings=tuple(timings)))
