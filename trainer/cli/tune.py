"""`mayfly tune`: measure how this machine trains a job's models fastest, and keep the answer for its next runs."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from trainer.config import job_from, load_job, parse_assignments
from trainer.errors import UsageError


def run(arguments: argparse.Namespace) -> int:
    """Print the table of candidates, fastest first, and where the answer is kept."""
    if not 0 < arguments.seconds < float("inf"):
        raise UsageError(f"--seconds {arguments.seconds:g}", do="Give a number above 0; 60 is the most that is taken.")
    job = job_from(load_job(Path(arguments.job)) if arguments.job else {}, parse_assignments(arguments.settings))
    # Late: torch takes a second to load, and a wrong setting should not wait for it.
    from trainer.train.tune import told, tune_here

    choice, timings, file = tune_here(
        job, device=arguments.device, seconds=arguments.seconds, say=lambda line: print(line, file=sys.stderr)
    )
    if arguments.json:
        found = {"profile": choice.profile.name, "why": choice.why, "timings": [asdict(timing) for timing in timings]}
        print(json.dumps({**found, "file": str(file)}, indent=2))
        return 0
    print("\n".join([*told(job, choice, timings), f"kept in {file}: this machine's next runs of this shape take the first"]))
    return 0
