"""`mayfly profiles tune`: measure the fastest settings of this machine for a job's models, and store them for
its next runs.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import RenderableType

from trainer.base.errors import UsageError
from trainer.base.files import HeldFolder
from trainer.cli.output import counted, duration, say, say_json, warn
from trainer.cli.terminal import show
from trainer.cli.views.table import FittedTable, lines
from trainer.job.job import Job, load_job, parse_job, refuse_script
from trainer.machines.measurements import GPU_PACKS
from trainer.machines.memory import CPU

if TYPE_CHECKING:  # torch takes a second to load, and a wrong setting should not wait for it
    from trainer.machines.choice import Choice
    from trainer.train.tuning.timing import Timing

DEFAULT_SECONDS = 20.0
MOST_SECONDS = 60.0


def run(arguments: argparse.Namespace) -> int:
    """Print the table of candidates, the chosen one first, and the file that stores it."""
    job = _job(arguments)
    # Late: torch takes a second to load, and a wrong setting should not wait for it.
    from trainer.train.own.check import checked
    from trainer.train.tuning.tune import remember, tune_here
    from trainer.train.workers.devices import choose_device

    job = checked(job)
    choose_device(job, arguments.device)  # a profile that is unknown, or larger than the chip, ends it here
    job, seconds, batch_limit, why = _trial(job, arguments)
    warn(f"tuning for {seconds:.0f} s at most: {why}")
    choice, timings = tune_here(
        job, device=arguments.device, seconds=seconds, batch_limit=batch_limit, say=warn
    )
    file = remember(choice, job, timings[0])
    if arguments.json:
        limit = {"most": round(seconds, 1), "why": why}
        known = {"profile": choice.profile.name, "why": choice.why, "seconds": limit, "file": str(file)}
        say_json({**known, "timings": [asdict(timing) for timing in timings]})
        return 0
    show(_view(job, choice, timings))
    say(f"stored in {file}: this machine's next runs of this shape{_models(job, choice)} use the first")
    return 0


def _job(arguments: argparse.Namespace) -> Job:
    if arguments.seconds is not None and not 0 < arguments.seconds < float("inf"):
        do = "Give a number above 0; 60 is the most that is taken."
        raise UsageError(f"--seconds {arguments.seconds:g}", do=do)
    flags = {"data.path": arguments.data, "machine.gpu_profile": arguments.gpu_profile}
    present = {key: value for key, value in flags.items() if value is not None}
    tables = load_job(Path(arguments.job)) if arguments.job else {}
    job = parse_job(tables, present, arguments.settings)
    refuse_script(job, "profiles tune")
    if not job.train.batch and not job.data.path:
        why, do = "they decide how large it may become", "Name them with --data."
        raise UsageError("train.batch = auto, but no candles", why=why, do=do)
    return job


def _trial(job: Job, arguments: argparse.Namespace) -> tuple[Job, float, int, str]:
    """Return the job that a run of the candles would time (the job itself without any), the seconds to
    measure, the largest batch for `auto`, and the reason for this time.
    """
    seconds = min(MOST_SECONDS, arguments.seconds or DEFAULT_SECONDS)
    why = "--seconds" if arguments.seconds else "change it with --seconds"
    if not job.data.path:
        return job, seconds, 0, why
    from trainer.train.inputs.source import plan_and_open
    from trainer.train.inputs.survey import survey
    from trainer.train.tuning.chosen import Site, run_estimate
    from trainer.train.workers.devices import choose_device, default_workers

    kind, choice = choose_device(job, arguments.device)
    with HeldFolder("candles") as scratch:
        surveyed = survey(job, plan_and_open(job, Path(job.data.path), scratch=Path(scratch)).plan)
    workers = min(default_workers(kind), len(surveyed.pieces))
    site = Site(kind=kind, profile=choice, workers=workers)
    run_seconds, limit = run_estimate(job, site, surveyed)
    run = (
        f"a run of about {duration(run_seconds)} ({counted(len(surveyed.pieces), 'model')},"
        f" {surveyed.data['bars']:,} bars)"
    )
    return site.trial_of(job, surveyed), seconds, limit, f"{why}; for {run}"


def _models(job: Job, choice: Choice) -> str:
    """Return of how many models a run takes a measurement, as words; '' where that makes no difference."""
    if choice.profile.name == CPU or not job.model.has_stacked_form:
        return ""
    most = max(GPU_PACKS)
    return f" with {job.expert.pack or f'{most} or more'} models on a GPU"


def _view(job: Job, choice: Choice, timings: Sequence[Timing]) -> RenderableType:
    """Return the candidates as a table with a legend."""
    unit, batch = job.model.reads, job.train.batch
    steps = f"of {batch} {unit}" if batch else "of batches that differ"
    reading = f"Most {unit} a second wins; it/s are {steps} and mislead."
    table = FittedTable(
        [_row(timing, f"{unit}/s") for timing in timings],
        right=("batch", "pack", "slice", f"{unit}/s", "it/s", "GiB a model"),
        leaving=("GiB a model", "checkpointing", "slice", "it/s"),
        wraps=("excluded",),
    )
    return lines(f"{choice.profile.name}: {choice.why}. {reading}", table)


def _row(timing: Timing, rate_title: str) -> dict[str, str]:
    option, rate, memory = timing.candidate, timing.windows_per_second, timing.memory_per_model_gib
    row = {
        "batch": f"{option.batch:,}" if option.batch else "",
        "strategy": option.strategy,
        "pack": str(option.pack),
        "slice": str(option.micro_batch),
        "checkpointing": "on" if option.activation_checkpointing else "",
        rate_title: f"{rate:,.0f}" if rate >= 100 else f"{rate:,.2f}",
        "it/s": f"{timing.steps_per_second:,.1f}",
        "GiB a model": f"{memory:.2f}" if memory else "",
        "excluded": str(timing.excluded or ""),
    }
    return row | ({rate_title: "-", "it/s": "-", "GiB a model": ""} if timing.excluded else {})
