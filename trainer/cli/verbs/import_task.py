"""`mayfly import FILE`: turn a SkyPilot or dstack task into a job, and list the keys that could not be
converted.
"""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer.base.errors import UsageError
from trainer.cli.output import mayfly, say, say_json, warn
from trainer.importing.dstack import from_dstack
from trainer.importing.imported import ImportedTask, to_toml
from trainer.importing.skypilot import from_skypilot
from trainer.importing.yaml_file import read_yaml
from trainer.job.job import job_from, load_job


def run(arguments: argparse.Namespace) -> int:
    """Write the job beside the task's files, with a script of its commands if needed; overwrite nothing."""
    path = Path(arguments.file)
    task, root = _imported(read_yaml(path), path)
    if not root.is_dir():
        raise UsageError(
            f"{root} is not a folder", why="workdir names it", do="Correct workdir, or make the folder."
        )
    job = Path(arguments.out) if arguments.out else root / f"{task.name}.toml"
    files = _files(task, root, job)
    for place in files:
        if place.exists() or place.is_symlink():
            raise UsageError(f"{place} exists already", do="Name another file with --out, or remove it.")
    try:
        for place, content in files.items():
            place.write_text(content, encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"cannot write into {place.parent}", why=str(error.strerror), do="Name another file with --out."
        ) from error
    job_from(load_job(job))  # what a launch does with it first
    if arguments.json:
        notes = [{"key": key, "do": text} for key, text in task.notes.items()]
        say_json({"job": str(job), "files": [str(place) for place in files], "look_at": notes})
        return 0
    say(*(str(place) for place in files))
    for key, text in task.notes.items():
        warn(f"look at {key}: {text}")
    warn(f"look at it: {mayfly()} launch --rehearse --dry-run --job {shlex.quote(str(job))}")
    return 0


def _imported(values: Mapping[str, Any], path: Path) -> tuple[ImportedTask, Path]:
    """Return the task by the tool whose keys the file has. Raises UsageError for any other."""
    if "type" in values:
        return from_dstack(values, path)
    if {"run", "setup", "resources"} & values.keys():
        return from_skypilot(values, path)
    why = "it has neither type: task of dstack nor run of SkyPilot"
    raise UsageError(
        f"{path} is not a known task", why=why, do="docs/coming-from.md shows how to convert others by hand."
    )


def _files(task: ImportedTask, root: Path, job: Path) -> dict[Path, str]:
    """Return the files to write, by path, the job first. Paths in the job are relative to its folder. Raises
    UsageError.
    """
    beside, made = job.parent, dict[Path, str]()
    if task.run:
        place = root / f"{job.stem}-run.sh"
        made[place] = task.run
        task.script["command"] = f"bash {place.name}"
        files = task.script.setdefault("files", [])
        task.script["files"] = files if "." in files else [*files, place.name]
    if task.requirements and "requirements" in task.script:
        packages = " ".join(task.requirements)
        task.note(
            "pip install",
            f"a script has one requirements file: add {packages} to {task.script['requirements']}",
        )
    elif task.requirements:
        place = root / f"{job.stem}-requirements.txt"
        made[place] = "".join(f"{line}\n" for line in dict.fromkeys(task.requirements))
        task.script["requirements"] = place.name
    if (name := task.script.get("requirements")) and root / name not in made and not (root / name).is_file():
        task.note(f"pip install -r {name}", f"{root} has no such file: script.requirements was left out")
        del task.script["requirements"]
    if not task.script.get("command"):
        raise UsageError(
            "the task runs nothing", why="it has no command of its own", do="Give it one, in run or commands."
        )
    if (named := os.path.relpath(root, beside)) != ".":
        task.script["root"] = named
    if task.folder and "://" not in task.folder:
        task.folder = os.path.relpath(task.folder, beside)
    order = ("command", "files", "root", "requirements", "env", "secrets")
    task.script = {key: task.script[key] for key in order if key in task.script}
    tables = task.tables()
    job_from(tables)  # before anything is written
    return {
        job: to_toml(
            tables, ["Made of a task of another tool by mayfly import; docs/scripts.md has every key."]
        ),
        **made,
    }
