"""`mayfly tune`: measure how this machine trains a job's models fastest, and keep the answer for its next runs."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trainer.cli.output import duration
from trainer.errors import UsageError
from trainer.job import Job, job_from, load_job, parse_assignments, with_keys, with_settings

DEFAULT_SECONDS = 20.0  # without candles to estimate the run by
MOST_SECONDS = 60.0


def run(arguments: argparse.Namespace) -> int:
    """Print the table of candidates, the chosen first, and where the answer is kept."""
    job = _job(arguments)
    # Late: torch takes a second to load, and a wrong setting should not wait for it.
    from trainer.train.tuning.placement import choose_device
    from trainer.train.tuning.tune import remember, told, tune_here

    choose_device(job, arguments.device)  # a profile that is unknown, or larger than the chip, ends it here
    seconds, batch_limit, why = _time(job, arguments)
    print(f"tuning for {seconds:.0f} s at most: {why}", file=sys.stderr)
    choice, timings = tune_here(
        job,
        device=arguments.device,
        seconds=seconds,
        batch_limit=batch_limit,
        say=lambda line: print(line, file=sys.stderr),
    )
    file = remember(choice, job, timings[0])
    if arguments.json:
        found = {"profile": choice.profile.name, "why": choice.why, "timings": [asdict(timing) for timing in timings]}
        print(json.dumps({**found, "seconds": {"most": round(seconds, 1), "why": why}, "file": str(file)}, indent=2))
        return 0
    print("\n".join([*told(job, choice, timings), f"kept in {file}: this machine's next runs of this shape take the first"]))
    return 0


def _job(arguments: argparse.Namespace) -> Job:
    if arguments.seconds is not None and not 0 < arguments.seconds < float("inf"):
        raise UsageError(f"--seconds {arguments.seconds:g}", do="Give a number above 0; 60 is the most that is taken.")
    flags = {"data": arguments.data, "gpu_profile": arguments.gpu_profile}
    present: dict[str, Any] = {key: value for key, value in flags.items() if value is not None}
    settings = load_job(Path(arguments.job)) if arguments.job else {}
    job = job_from(with_keys(settings, {**present, **parse_assignments(arguments.settings)}))
    if not job.train.batch and not job.data.path:
        raise UsageError("batch = auto, but no candles", why="they decide how large it may become", do="Name them with --data.")
    return job


def _time(job: Job, arguments: argparse.Namespace) -> tuple[float, int, str]:
    """Return the most seconds, the largest batch that `auto` may become, and why so long.

    Raises UsageError where 2 % of the run that the candles make are too little to measure anything in.
    """
    if not job.data.path:
        seconds = min(MOST_SECONDS, arguments.seconds or DEFAULT_SECONDS)
        return seconds, 0, "--seconds" if arguments.seconds else "without --data the run's length is not known"
    from trainer.train.survey import survey
    from trainer.train.tuning.chosen import LEAST_SECONDS, Site, look_ahead
    from trainer.train.tuning.placement import choose_device
    from trainer.train.workers.devices import default_workers

    kind, choice = choose_device(job, arguments.device)
    found = survey(with_settings(job, path=""), Path(job.data.path))
    workers = min(default_workers(kind), len(found.tasks))
    ahead = look_ahead(job, Site(kind=kind, profile=choice, workers=workers), found)
    run = f"a run of about {duration(ahead.run_seconds)} ({len(found.tasks)} models, {found.data['bars']:,} bars)"
    if arguments.seconds:
        return min(MOST_SECONDS, arguments.seconds), ahead.batch_limit, f"--seconds, for {run}"
    if ahead.tuner_seconds < LEAST_SECONDS:
        raise UsageError(
            f"not worth tuning for: {run}",
            why=f"2 % of it are {ahead.tuner_seconds:.1f} s, and to measure takes {LEAST_SECONDS:.0f}",
            do="Tune all the same with --seconds 20.",
        )
    return ahead.tuner_seconds, ahead.batch_limit, f"2 % of {run}, and no more than {MOST_SECONDS:.0f} s"
