"""`mayfly profiles tune`: compare, as a training of a job would, the strategies on this machine."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import RenderableType

from trainer.base.errors import UsageError
from trainer.base.files import HeldFolder
from trainer.cli.output import counted, say, say_json, warn
from trainer.cli.terminal import show
from trainer.cli.views.table import FittedTable, lines
from trainer.job.job import Job, refuse_script
from trainer.job.reading import load_job, parse_job

if TYPE_CHECKING:  # torch takes a second to load, and a wrong setting should not wait for it
    from trainer.machines.choice import Choice
    from trainer.train.tuning.timing import Timing

DEFAULT_SECONDS = 9.0
MOST_SECONDS = 60.0


def run(arguments: argparse.Namespace) -> int:
    """Print the table of candidates, the chosen one first."""
    job = _job(arguments)
    # Late: torch takes a second to load, and a wrong setting should not wait for it.
    from trainer.train.own.check import checked
    from trainer.train.tuning.trial import compare_here
    from trainer.train.workers.devices import choose_device

    job = checked(job)
    choose_device(job, arguments.device)  # a profile that is unknown, or larger than the chip, ends it here
    job, seconds, batch_limit, why = _trial(job, arguments)
    warn(f"comparing strategies for {seconds:.0f} s: {why}")
    choice, timings = compare_here(
        job, device=arguments.device, seconds=seconds, batch_limit=batch_limit, say=warn
    )
    if arguments.json:
        limit = {"most": round(seconds, 1), "why": why}
        known = {"profile": choice.profile.name, "why": choice.why, "seconds": limit}
        say_json({**known, "timings": [timing.to_dict() for timing in timings]})
        return 0
    show(_view(job, choice, timings))
    say("A training on a GPU compares them again before it starts, with as many models as it has.")
    return 0


def _job(arguments: argparse.Namespace) -> Job:
    if arguments.seconds is not None and not 0 < arguments.seconds < float("inf"):
        do = "Give a number above 0; 60 is the most that is taken."
        raise UsageError(f"--seconds is {arguments.seconds:g}", do=do)
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
    from trainer.train.tuning.chosen import Site, largest_batch
    from trainer.train.workers.devices import choose_device, default_workers

    kind, choice = choose_device(job, arguments.device)
    with HeldFolder("candles") as scratch:
        surveyed = survey(job, plan_and_open(job, Path(job.data.path), scratch=Path(scratch)).plan)
    workers = min(default_workers(kind), len(surveyed.pieces))
    site = Site(kind=kind, profile=choice, workers=workers)
    run = f"{counted(len(surveyed.pieces), 'model')}, {surveyed.data['bars']:,} bars"
    return site.trial_of(job, surveyed), seconds, largest_batch(job, site, surveyed), f"{why}; for {run}"


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
    rate, memory = timing.windows_per_second, timing.memory_per_model_gib
    row = {
        "batch": f"{timing.batch:,}",
        "strategy": timing.strategy,
        "pack": str(timing.pack),
        "slice": str(timing.micro_batch),
        "checkpointing": "on" if timing.activation_checkpointing else "",
        rate_title: f"{rate:,.0f}" if rate >= 100 else f"{rate:,.2f}",
        "it/s": f"{timing.steps_per_second:,.1f}",
        "GiB a model": f"{memory:.2f}" if memory else "",
        "excluded": str(timing.excluded or ""),
    }
    return row | ({rate_title: "-", "it/s": "-", "GiB a model": ""} if timing.excluded else {})
