"""The job that a user asks for: their defaults, the file of --job, flags, --set, the later winning."""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path

from trainer.base.environment import defaults_file
from trainer.base.errors import UsageError
from trainer.cli.defaults import under
from trainer.job.job import MAX_JOB_NAME, Job
from trainer.job.reading import load_job, parse_assignments, parse_job
from trainer.job.tables import Tables

FLAGS = {  # of the job, with their keys
    "instance": "machine.instance",
    "model": "model.name",
    "target": "target.name",
    "symbols": "data.symbols",
    "timeframe": "data.timeframe",
    "data": "data.path",
    "market": "machine.market",
    "max_duration": "machine.max_duration",
}
NUMBERS = {"epochs": "train.epochs", "budget": "machine.budget"}


def asked_job(arguments: argparse.Namespace, *, script_duration: str = "") -> Job:
    """Parse the job that the user asks for, the later winning: their defaults, job file, flags, --set.

    `script_duration`: longest duration of a script whose user names none.
    """
    file = load_job(Path(arguments.job)) if arguments.job else {}
    flags = {key: value for name, key in FLAGS.items() if (value := getattr(arguments, name)) is not None}
    _refuse_nothing(arguments)
    if arguments.script is not None:
        file = with_script(file, arguments.script)
    if "script" in file and "data.path" in flags:
        flags["data.folder"] = flags.pop("data.path")
    numbers = [
        f"{key}={value}" for name, key in NUMBERS.items() if (value := getattr(arguments, name)) is not None
    ]
    assignments = [*numbers, *arguments.settings]
    if defaults_file().exists():
        file = under(file, {*flags, *parse_assignments(assignments)}, arguments)
    return parse_job(file, flags, assignments, script_duration=script_duration)


def _refuse_nothing(arguments: argparse.Namespace) -> None:
    """Raise UsageError for a flag that would count as not given: an empty text, and a budget of 0."""
    for name in FLAGS:
        if getattr(arguments, name) == "":
            raise UsageError(f"--{name.replace('_', '-')} is empty", do="Give it a value, or leave it out.")
    if (budget := arguments.budget) is not None and parse_assignments([f"it={budget}"])["it"] == 0:
        do = "Name the dollars that the run may cost at most, or leave it out for none."
        raise UsageError(f"--budget is {budget}", why="no run costs nothing", do=do)


def with_script(tables: Tables, file: str) -> Tables:
    """Return the tables with `--script FILE`: its command, its folder, and the run's name if none is
    given.
    """
    path = Path(file)
    if not path.is_file():
        what = "is not a file" if path.exists() else "does not exist"
        raise UsageError(f"script {file} {what}", do="Name your training script: --script train.py.")
    name = re.sub(r"[^a-z0-9]+", "-", path.stem.lower()).strip("-")[:MAX_JOB_NAME].strip("-") or "script"
    script = {
        **tables.get("script", {}),
        "command": shlex.join(["python", path.name]),
        "root": str(path.parent),
    }
    return {"name": name, **tables, "script": script}
