"""The user's defaults, `~/.config/mayfly/defaults.toml`: flags and keys of jobs that they did not give.

    [flags]                               # of every verb that has them
    stack = "prod"                        # not of `down` and `plan`, nor of a rehearsal or a folder
    objective = "cost"
    desk = ["rtx_4090=0.12"]
    [machine]                             # and [train] and [expert]: keys of a job
    market = ["spot", "on_demand"]

A flag and `--set` win over the job file, and that over this file. It is read strictly. `train`, `profiles`
and `retrains publish` take no keys of a job from it: what they do is of a machine or of a team.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Sequence
from typing import Any

from trainer.base import environment
from trainer.base.errors import UsageError, nearest
from trainer.base.files import read_plain
from trainer.base.settings import MOST_TOML_BYTES, keys_of, read_keys, read_toml
from trainer.job.machine import MachineSettings
from trainer.job.tables import Tables
from trainer.job.train import ExpertSettings, TrainSettings

TABLES = {"machine": MachineSettings, "train": TrainSettings, "expert": ExpertSettings}
FLAGS = {"stack": str, "objective": str, "desk": list}  # with their types
WITHOUT_STACK = ("down", "plan")  # one destroys it, the other needs none
OBJECTIVES = ("cost", "time", "balanced")


def take_flags(arguments: argparse.Namespace, words: Sequence[str]) -> None:
    """Set the flags of a parsed command that its words do not name. `arguments.from_defaults` gets each as
    text.
    """
    arguments.from_defaults = []
    tables = read_defaults()
    # A rehearsal and a folder have one stack.
    has_one = getattr(arguments, "rehearse", False) or getattr(arguments, "local", None) is not None
    for name, value in tables.get("flags", {}).items():
        given = any(word == f"--{name}" or word.startswith(f"--{name}=") for word in words)
        is_kept_out = name == "stack" and (has_one or arguments.verb in WITHOUT_STACK)
        if given or is_kept_out or not hasattr(arguments, name):
            continue
        setattr(arguments, name, value)
        arguments.from_defaults.append(f"--{name} {' '.join(value) if isinstance(value, list) else value}")


def under(tables: Tables, given: Collection[str], arguments: argparse.Namespace) -> Tables:
    """Return a job file's tables with the defaults of keys that neither it nor `given` has, named with their
    tables. A script takes those of [machine] alone.
    """
    arguments.from_defaults = getattr(arguments, "from_defaults", [])
    merged = dict(tables)
    for table in ("machine",) if "script" in tables else TABLES:
        own = tables.get(table, {})
        values = read_defaults().get(table, {})
        values = {key: value for key, value in values.items() if key not in own}
        merged |= {table: {**own, **values}} if values else {}
        taken = [key for key in values if f"{table}.{key}" not in given]
        arguments.from_defaults += [f"{table}.{key} = {_shown(values[key])}" for key in taken]
    return merged


def notes(arguments: argparse.Namespace, *, unused: str = "") -> list[str]:
    """Return a note on the values that come from the file, if any do. `unused`: a key that has no effect."""
    taken = [one for one in getattr(arguments, "from_defaults", []) if one.partition(" ")[0] != unused]
    return [f"from {environment.defaults_file()}: {'; '.join(taken)}"] if taken else []


def read_defaults() -> Tables:
    """Return the file's tables, {} without one. Raises UsageError for what is not TOML, and for unknown keys
    and bad values.
    """
    path = environment.defaults_file()
    try:
        tables = read_toml(read_plain(path, most_bytes=MOST_TOML_BYTES).decode("utf-8-sig"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        why = str(getattr(error, "strerror", "") or error)
        raise UsageError(f"cannot read {path}", why=why, do="Mend it, or remove it.") from error
    try:
        _check(tables)
    except UsageError as error:
        raise UsageError(f"{path}: {error.what}", why=error.why, do=error.do) from error
    return tables


def _check(tables: Tables) -> None:
    for table, values in tables.items():
        if table not in ("flags", *TABLES) or not isinstance(values, dict):
            do = nearest(table, ("flags", *TABLES)) or f"It has the tables flags, {', '.join(TABLES)}."
            raise UsageError(f"unknown table '{table}'", do=do)
        keys = FLAGS if table == "flags" else keys_of(TABLES[table])
        if unknown := next((key for key in values if key not in keys), ""):
            do = nearest(unknown, keys, count=1, closeness=0.7) or f"[{table}] has {', '.join(keys)}."
            raise UsageError(f"unknown key '{table}.{unknown}'", do=do)
        if table == "flags":
            _check_flags(values)
        else:
            TABLES[table](**read_keys(table, TABLES[table], values))


def _check_flags(values: dict[str, Any]) -> None:
    for name, value in values.items():
        texts = value if isinstance(value, list) else [value]
        if not isinstance(value, FLAGS[name]) or not all(isinstance(one, str) and one for one in texts):
            expected = "a list of texts" if FLAGS[name] is list else "text"
            raise UsageError(f"'flags.{name}' is {value!r}", do=f"Set it to {expected}.")
        if name == "objective" and value not in OBJECTIVES:
            raise UsageError(f"'flags.objective' is {value!r}", do=f"Set it to {', '.join(OBJECTIVES)}.")


def _shown(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
