"""Measure how this device trains the job's models fastest, and keep the answer for the next run.

    python -m trainer.train.tune                             the default job on this machine's GPU, else on one core
    python -m trainer.train.tune --set hidden=128 --set batch=1024 --seconds 60

Chosen are slices, strategy and models at a time: what changes the speed and not the model. Batch and learning rate are the
job's. Each candidate takes steps on rows of the real shape for its share of the time; the one with the most windows a second
wins. Steps a second say little: 10 it/s of 200 windows are as fast as 1 it/s of 2,000. Out of memory is an answer, too.
A strategy for GPUs must first agree with plain modules over ten steps, or it is excluded and the reason is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

import torch

from trainer.config import Job, job_from, load_job, parse_assignments, with_settings
from trainer.data.features import FEATURES
from trainer.errors import TrainerError, UsageError
from trainer.gpu_profiles.chips import user_file, write_measured
from trainer.gpu_profiles.choice import Choice
from trainer.gpu_profiles.memory import is_reference, with_rows_of_seven_years
from trainer.train.cpu import keep_freed_memory, use_one_thread
from trainer.train.pack import Lanes, Member, Pack
from trainer.train.placement import choose_device
from trainer.train.precision import matmul_dtype
from trainer.train.strategy import form_pack

TUNED = "tuned.json"  # beside the user's profiles
ROWS = 20_000  # of each model: enough that windows do not sit in a cache
GATE_STEPS = 10
MOST_SECONDS = 60.0  # for all candidates together
CPU_SLICES = (64, 128, 256)
GPU_PACKS = (1, 4, 8, 16, 32)
_SHAPE = ("model", "hidden", "layers", "lookback", "batch", "precision")


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One way to train: strategy, models at a time, windows in a slice."""

    strategy: str
    pack: int
    micro_batch: int


@dataclass(frozen=True, kw_only=True)
class Timing:
    """What a candidate does, or why it is out."""

    candidate: Candidate
    windows_per_second: float = 0.0
    steps_per_second: float = 0.0
    memory_per_model_gib: float = 0.0
    excluded: str = ""


def candidates(job: Job, kind: str) -> list[Candidate]:
    """Return what is worth timing. On a CPU that is one model's slices; batching models into one program loses there."""
    if kind == "cpu":
        slices = sorted({min(size, job.batch) for size in (*CPU_SLICES, job.batch)})
        return [Candidate(strategy="lanes", pack=1, micro_batch=size) for size in slices]
    packs = [job.pack] if job.pack else GPU_PACKS
    found = [Candidate(strategy="lanes", pack=1, micro_batch=job.batch)]
    return found + [
        Candidate(strategy=strategy, pack=pack, micro_batch=job.batch) for strategy in ("streams", "fused") for pack in packs
    ]


def tune(job: Job, device: torch.device, *, seconds: float, say: Callable[[str], None]) -> list[Timing]:
    """Time every candidate within about `seconds` in all; return the timings, fastest first, those that are out last."""
    options = candidates(job, device.type)
    members = make_members(max(option.pack for option in options), job, device)
    refused: dict[str, str] = {}
    for strategy in sorted({option.strategy for option in options} - {"lanes"}):
        if reason := disagreement(form_pack(members[:3], replace(job, strategy=strategy)), members[:3], job):
            refused[strategy] = reason
    for strategy, reason in refused.items():
        say(f"{strategy} is excluded: {reason}")
    timings: dict[Candidate, Timing] = {}
    for _ in range(2):  # twice in turn, the better counts: a disturbed moment hits one round
        for option in options:
            before = timings.get(option)
            if option.strategy in refused:
                timings[option] = Timing(candidate=option, excluded=refused[option.strategy])
            elif before is None or not before.excluded:
                found = _time(option, members[: option.pack], job, seconds=seconds / (2 * len(options)))
                timings[option] = max(before or found, found, key=lambda timing: timing.windows_per_second)
    return sorted(timings.values(), key=lambda timing: (bool(timing.excluded), -timing.windows_per_second))


def disagreement(other: Pack, members: Sequence[Member], job: Job) -> str:
    """Let a fresh pack of these members take ten steps beside plain modules; return '' if the losses agree, else how far not.

    1e-3 is allowed in float32, 1e-2 in half precision.
    """
    allowed = 1e-3 if matmul_dtype(job, members[0].rows_TF.device) == torch.float32 else 1e-2
    plain = Lanes(members, job, micro_batch=job.batch)
    worst = 0.0
    for step in range(GATE_STEPS):
        starts = batches(members, job, step)
        expected, found = (pack.step([True] * len(members), starts).double() for pack in (plain, other))
        worst = max(worst, float(((found - expected) / expected).abs().nan_to_num(torch.inf).max()))
    return "" if worst <= allowed else f"its losses differ by {worst:.1e} after {GATE_STEPS} steps, {allowed:.0e} is allowed"


def make_members(count: int, job: Job, device: torch.device) -> list[Member]:
    """Return models with rows of noise in the shape of real ones."""
    generator = torch.Generator().manual_seed(job.seed)
    rows = ROWS + job.lookback
    return [
        Member(
            name=f"m{number}",
            rows_TF=torch.randn(rows, len(FEATURES), generator=generator).to(device),
            labels_T=torch.randint(0, 2, (rows,), generator=generator).float().to(device),
            mean_F=torch.zeros(len(FEATURES), device=device),
            std_F=torch.ones(len(FEATURES), device=device),
        )
        for number in range(count)
    ]


def batches(members: Sequence[Member], job: Job, step: int) -> list[torch.Tensor]:
    """Return a batch of random windows for each model."""
    generator = torch.Generator().manual_seed(step)
    return [torch.randint(0, ROWS, (job.batch,), generator=generator).to(member.rows_TF.device) for member in members]


def _time(option: Candidate, members: Sequence[Member], job: Job, *, seconds: float) -> Timing:
    cuda = members[0].rows_TF.device.type == "cuda"
    active = [True] * len(members)
    try:
        if cuda:
            torch.cuda.reset_peak_memory_stats()
        pack = form_pack(members, replace(job, strategy=option.strategy, micro_batch=option.micro_batch, pack=option.pack))
        for step in range(2):  # warm-up: caches, and the recording of a graph
            pack.step(active, batches(members, job, step))
        steps, began = 0, time.perf_counter()
        while steps < 3 or time.perf_counter() - began < seconds:
            pack.step(active, batches(members, job, steps)).sum().item()  # waits for the device
            steps += 1
        elapsed = time.perf_counter() - began
    except torch.OutOfMemoryError:
        return Timing(candidate=option, excluded="out of memory")
    memory = torch.cuda.max_memory_allocated() / 2**30 if cuda else 0.0
    return Timing(
        candidate=option,
        windows_per_second=steps * job.batch * len(members) / elapsed,
        steps_per_second=steps / elapsed,
        memory_per_model_gib=memory / len(members),
    )


def remember(profile: str, job: Job, best: Timing) -> Path:
    """Keep the fastest way for this shape of job on this profile; return the file."""
    path = user_file().with_name(TUNED)
    known = _known(path)
    chosen = {**asdict(best.candidate), "windows_per_second": round(best.windows_per_second), "date": date.today().isoformat()}
    known.setdefault(profile, {})[_shape(job)] = chosen
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    partial.write_text(json.dumps(known, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    partial.replace(path)
    if not is_reference(job):
        return path
    figures: dict[str, Any] = {"windows_per_second": round(best.windows_per_second)}
    if best.memory_per_model_gib:
        memory_gib = with_rows_of_seven_years(best.memory_per_model_gib, rows=ROWS)
        figures.update(memory_per_model_gib=round(memory_gib, 3), models_per_gpu=best.candidate.pack)
    write_measured(profile, figures, date=date.today().isoformat())
    return path


def tuned(job: Job, profile: str) -> Job:
    """Return the job with what was measured for its shape on this profile, where it leaves the choice open."""
    found = _known(user_file().with_name(TUNED)).get(profile, {}).get(_shape(job))
    if found is None:
        return job
    return with_settings(
        job,
        strategy=found["strategy"] if job.strategy == "auto" else job.strategy,
        micro_batch=job.micro_batch or found["micro_batch"],
        pack=job.pack or found["pack"],
    )


def _known(path: Path) -> dict[str, dict[str, Any]]:
    try:
        found: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UsageError(
            f"what was tuned can't be read from {path}", why=str(error), do="Delete the file, tune again."
        ) from error
    return found


def _shape(job: Job) -> str:
    return " ".join(f"{name}={getattr(job, name)}" for name in _SHAPE)


def tune_here(job: Job, *, device: str, seconds: float, say: Callable[[str], None]) -> tuple[Choice, list[Timing], Path]:
    """Tune the job on this machine's GPU, else on one core, and keep the answer; return the profile, the timings, the file.

    `device` is auto, cpu or cuda. On a CPU it leaves torch at one thread. Raises UsageError for a job with nothing to tune, and
    for one that fits in no way.
    """
    if job.model != "lstm":
        raise UsageError(
            f"nothing to tune for model {job.model}", why="a model this large fills a device by itself", do="Tune an lstm job."
        )
    kind, choice = choose_device(job, device)
    if kind == "cpu":
        use_one_thread()
        keep_freed_memory()
    timings = tune(job, torch.device(kind), seconds=min(MOST_SECONDS, seconds), say=say)
    if timings[0].excluded:
        raise UsageError("no way to train this job works here", why=timings[0].excluded, do="Set micro_batch or hidden lower.")
    return choice, timings, remember(choice.profile.name, job, timings[0])


def told(job: Job, choice: Choice, timings: Sequence[Timing]) -> list[str]:
    """Return the table for people, with the sentence that says how to read it."""
    reading = f"Most windows a second wins; it/s are of {job.batch} windows and mislead."
    return [f"{choice.profile.name}: {choice.why}. {reading}", *(_line(timing) for timing in timings)]


def main(arguments: list[str] | None = None) -> int:
    """Tune, print the table on stderr and the choice as JSON on stdout; return the exit code."""
    parse = argparse.ArgumentParser(prog="python -m trainer.train.tune", description="Find the fastest way to train here.")
    parse.add_argument("--job", type=Path, help="job file")
    parse.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="settings", help="any job key")
    parse.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    parse.add_argument("--seconds", type=float, default=20.0, help="time for all of it, about; 60 at most")
    options = parse.parse_args(arguments)
    try:
        job = job_from(load_job(options.job) if options.job else {}, parse_assignments(options.settings))
        choice, timings, file = tune_here(
            job, device=options.device, seconds=options.seconds, say=lambda line: print(line, file=sys.stderr)
        )
    except TrainerError as error:
        print(f"Error: {error}", file=sys.stderr)
        return error.exit_code
    print("\n".join([*told(job, choice, timings), f"kept in {file}"]), file=sys.stderr)
    print(json.dumps({"profile": choice.profile.name, **asdict(timings[0])}))
    return 0


def _line(timing: Timing) -> str:
    option = timing.candidate
    name = f"{option.strategy:8} pack {option.pack:3}  slices of {option.micro_batch:5}"
    if timing.excluded:
        return f"{name}  excluded: {timing.excluded}"
    memory = f"  {timing.memory_per_model_gib:.2f} GiB a model" if timing.memory_per_model_gib else ""
    return f"{name}  {timing.windows_per_second:10,.0f} windows/s  {timing.steps_per_second:8.1f} it/s{memory}"


if __name__ == "__main__":
    sys.exit(main())
