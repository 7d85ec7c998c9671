"""A task of another tool as a job: its tables, its files, and the keys that could not be converted."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainer.base.errors import UsageError
from trainer.base.settings import brief
from trainer.job.job import MAX_JOB_NAME
from trainer.job.machine import parse_duration
from trainer.job.script import is_secret_name

DEFAULT_DURATION = "8h"  # where the task has no limit: a run has to end
MOST_NOTES = 200
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


@dataclass(kw_only=True)
class ImportedTask:
    """The job that a task file is converted to, while it is read, and notes on keys that can't be
    converted.
    """

    name: str
    script: dict[str, Any] = field(default_factory=dict)
    folder: str = ""  # of data
    machine: dict[str, Any] = field(default_factory=dict)
    run: str = ""  # the shell script; '' if the command needs no shell
    requirements: list[str] = field(default_factory=list)  # packages that its commands install
    notes: dict[str, str] = field(default_factory=dict)  # key of the task -> what to do about it

    def note(self, key: str, text: str) -> None:
        """Add the advice for a key that was not converted, or only in part."""
        if len(self.notes) < MOST_NOTES:
            self.notes[key] = f"{self.notes[key]}; {text}" if key in self.notes else text

    def tables(self) -> dict[str, Any]:
        """Return the job."""
        data = {"data": {"folder": self.folder}} if self.folder else {}
        return {"name": self.name, "script": self.script, **data, "machine": self.machine}


def job_name(text: Any, otherwise: str) -> str:
    """Return a task's name, or its file's, as a job can have it."""
    for given in (text, otherwise):
        plain = re.sub(r"[^a-z0-9]+", "-", str(given or "").lower()).strip("-")[:MAX_JOB_NAME].strip("-")
        if plain:
            return plain
    return "task"


def take_variables(task: ImportedTask, key: str, variables: Mapping[str, Any]) -> None:
    """Take variables into script.env, and names of secrets into script.secrets; note those that can't be
    taken.
    """
    env, secrets = task.script.setdefault("env", []), task.script.setdefault("secrets", [])
    for name, value in variables.items():
        text = "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
        where = f"{key}.{name}"
        if not _VARIABLE.fullmatch(str(name)) or str(name).startswith(("MAYFLY_", "AWS_")) or name == "PATH":
            task.note(
                where, "a script can't have this variable: rename it (AWS credentials: a run gets none)"
            )
        elif is_secret_name(str(name)) or (key == "secrets"):
            secrets.append(str(name))
            task.note(
                where, "its value stays here: store it once as a SecureString, see Secrets in docs/scripts.md"
            )
        elif value is None:
            task.note(where, f'it has no value in the file: add "{name}=VALUE" to script.env')
        elif not text.isprintable() or not isinstance(value, (str, int, float)):
            task.note(where, "a variable is one line of printable text: put it into a file of script.files")
        else:
            env.append(f"{name}={text}")
    for empty in [name for name in ("env", "secrets") if not task.script[name]]:
        del task.script[empty]


def take_duration(task: ImportedTask, key: str, value: Any) -> None:
    """Take the longest duration of a run: seconds, or a text such as 2h; without one a run has
    DEFAULT_DURATION.
    """
    text = f"{value}s" if isinstance(value, int) and not isinstance(value, bool) else str(value or "")
    try:
        parse_duration(text)
        task.machine["max_duration"] = text
    except UsageError:
        task.machine["max_duration"] = DEFAULT_DURATION
        task.note(
            key, f"a run has to end: machine.max_duration is {DEFAULT_DURATION}, set what the script needs"
        )


def note_unknown(
    task: ImportedTask, prefix: str, given: Iterable[str], taken: Iterable[str], advice: Mapping[str, str]
) -> None:
    """Note every key that was not taken, with the advice for it."""
    known = set(taken)
    for key in given:
        if str(key) not in known:
            task.note(f"{prefix}{key}", advice.get(str(key), "a job has no such key: leave it out"))


def text_of(value: Any, key: str) -> str:
    """Return a text of the task. Raises UsageError for anything else."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise UsageError(
            f"{key} of the task is {brief(value)}", why="it must be text", do="Correct the task file."
        )
    return value


def path_of(text: str, key: str, beside: Path) -> Path:
    """Return a path of the task, from the folder of its file. Raises UsageError for the home of a user who is
    not here.
    """
    try:
        return Path(beside, Path(text).expanduser())
    except RuntimeError as error:
        why, do = "this machine has no such user", "Correct the task file."
        raise UsageError(f"{key} of the task is {brief(text)}", why=why, do=do) from error


def mapping_of(value: Any, key: str) -> dict[str, Any]:
    """Return a mapping of the task. Raises UsageError for anything else."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise UsageError(
            f"{key} of the task is {brief(value)}", why="it must be a mapping", do="Correct the task file."
        )
    return {str(name): entry for name, entry in value.items()}


def to_toml(tables: Mapping[str, Any], head: Iterable[str]) -> str:
    """Write a job as TOML: texts, numbers and lists of texts."""
    lines = [*(f"# {line}" if line else "" for line in head)]
    lines += [f"{key} = {_value(value)}" for key, value in tables.items() if not isinstance(value, Mapping)]
    for name, table in tables.items():
        if isinstance(table, Mapping):
            lines += ["", f"[{name}]", *(f"{key} = {_value(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else str(value)
