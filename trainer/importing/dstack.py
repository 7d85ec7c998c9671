"""A dstack task as a job (dstack.ai/docs, .dstack.yml of type task; looked up 2026-11-22)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from trainer.base.errors import UsageError
from trainer.base.settings import brief
from trainer.importing.accelerators import types_with
from trainer.importing.imported import (
    ImportedTask,
    job_name,
    mapping_of,
    note_unknown,
    take_duration,
    take_variables,
)
from trainer.importing.shell import take_commands
from trainer.machines.instances import catalogue

TAKEN = (
    *(
        "type",
        "name",
        "commands",
        "env",
        "resources",
        "max_duration",
        "spot_policy",
        "nodes",
        "files",
        "repos",
    ),
    *("instance_types", "setup"),
)
_IMAGE = "the image is AWS's for PyTorch, by the stack's setting image_line; packages: script.requirements"
_ONE = "one machine runs it, as a user of its own: leave it out"
ADVICE = {
    **dict.fromkeys(("image", "python", "nvcc", "docker", "registry_auth"), _IMAGE),
    **dict.fromkeys(
        (
            "privileged",
            "user",
            "entrypoint",
            "shell",
            "home_dir",
            "single_branch",
            "priority",
            "startup_order",
        ),
        _ONE,
    ),
    **dict.fromkeys(
        ("backends", "regions", "availability_zones"),
        "the region is AWS_REGION's, the zones are those of the stack",
    ),
    **dict.fromkeys(
        ("idle_duration", "creation_policy", "fleets", "pool_name", "stop_condition"),
        "a machine ends with its script",
    ),
    "ports": "nothing comes in: mayfly attach RUN --forward reaches a port",
    "working_dir": "a script begins in its folder: change into it in the command",
    "volumes": "nothing is mounted: data comes from data.folder, results go to $MAYFLY_OUT",
    "retry": "script.restarts starts again after a signal, on the same machine",
    "schedule": "publish it as a retrain: docs/retrains.md",
    "max_price": "machine.budget bounds the dollars of a run",
    "reservation": "reservations are not used",
    "utilization_policy": "machine.max_duration is the limit",
    "stop_duration": "a script has 30 s from SIGTERM to SIGKILL",
    "tags": "every resource has the stack's tags",
    "instance_name": "every run has a machine of its own",
}
OF_RESOURCES = {
    "cpu": "they come with the type: see mayfly launch --dry-run, and machine.instance",
    "memory": "it comes with the type: see mayfly launch --dry-run, and machine.instance",
    "shm_size": "a process has the machine's whole shared memory",
    "disk": "the stack's setting volume_gib has it",
}
VARIABLES = {
    **dict.fromkeys(("DSTACK_GPUS_PER_NODE", "DSTACK_GPUS_NUM"), "$MAYFLY_DEVICES"),
    "DSTACK_NODES_NUM": "1",
    "DSTACK_NODE_RANK": "0",
    "DSTACK_MASTER_NODE_IP": "127.0.0.1",
}
_MEMORY = re.compile(r"(\d+(?:\.\d+)?)\s*(TB|GB|MB)?", re.IGNORECASE)


def from_dstack(values: Mapping[str, Any], path: Path) -> tuple[ImportedTask, Path]:
    """Return a task as a job, and the folder of its files. Raises UsageError for a service or a dev
    environment.
    """
    if values.get("type") != "task":
        why = f"it is of type {brief(values.get('type'))}"
        raise UsageError(f"{path} is not a task of dstack", why=why, do="Name a file of type: task.")
    stem = path.name.removesuffix(".yml").removesuffix(".yaml").removesuffix(".dstack")
    task = ImportedTask(name=job_name(values.get("name"), stem or path.resolve().parent.name))
    note_unknown(task, "", values, TAKEN, ADVICE)
    if values.get("nodes") not in (None, 1):
        task.note("nodes", "a run has one machine: choose a type with more GPUs in machine.instance")
    take_variables(task, "env", _variables(values.get("env")))
    _take_resources(task, mapping_of(values.get("resources"), "resources"))
    types = values.get("instance_types")
    if known := [str(name) for name in types if str(name) in catalogue()] if isinstance(types, list) else []:
        task.machine["instance"] = known
    elif types:
        task.note("instance_types", "none is a GPU type of EC2 that is known here: set machine.instance")
    if (policy := values.get("spot_policy")) in ("spot", "auto"):
        task.machine["market"] = "spot" if policy == "spot" else "on_demand"
        if policy == "auto":
            task.note("spot_policy", "a run has one market: machine.market is on_demand, spot is cheaper")
    take_duration(task, "max_duration", values.get("max_duration"))
    root = _take_files(task, values, path)
    commands = values.get("commands") or []
    if not isinstance(commands, list) or not all(isinstance(line, str) for line in commands):
        raise UsageError(
            f"commands of the task is {brief(commands)}",
            why="it must be a list of texts",
            do="Correct the task file.",
        )
    take_commands(task, "", "\n".join(commands), strict=True, renamed=VARIABLES, folder=True)
    return task, root


def _variables(given: Any) -> dict[str, Any]:
    """Return `env`, a mapping or a list of NAME=value and NAME."""
    if not isinstance(given, list):
        return mapping_of(given, "env")
    pairs = [str(entry).partition("=") for entry in given]
    return {name: value if equals else None for name, equals, value in pairs}


def _take_files(task: ImportedTask, values: Mapping[str, Any], path: Path) -> Path:
    """Take the folder or the files that go along; return their folder."""
    files, repos = values.get("files") or [], values.get("repos") or []
    named: list[str] = []
    for entry in files if isinstance(files, list) else []:
        local = str(
            entry.get("local_path", "") if isinstance(entry, Mapping) else str(entry).partition(":")[0]
        )
        inside = PurePosixPath(local)
        if not local or inside.is_absolute() or ".." in inside.parts or local.startswith("~"):
            task.note(
                f"files: {brief(local)[1:-1]}",
                "put it below the task file's folder, and name it in script.files",
            )
            continue
        named.append(inside.as_posix())
        if isinstance(entry, Mapping) or ":" in str(entry):
            task.note(
                f"files: {brief(local)[1:-1]}",
                "it keeps its path from the task file's folder: change the command",
            )
    root = path.parent
    for entry in repos if isinstance(repos, list) else []:
        text = str(entry.get("local_path", "") if isinstance(entry, Mapping) else entry)
        place = Path(path.parent, Path(text.partition(":")[0] or "."))
        if "://" in text or "@" in text or not text or not place.is_dir():
            task.note(
                "repos", "a Git repository is not fetched: clone it, and name its folder in script.root"
            )
        elif not named:
            root = place
    task.script["files"] = named or ["."]
    return root


def _take_resources(task: ImportedTask, resources: Mapping[str, Any]) -> None:
    note_unknown(task, "resources.", resources, ("gpu",), OF_RESOURCES)
    asked = resources.get("gpu")
    if asked is None:
        return
    names, count, memory = _gpu(asked)
    least, most = _range(count)
    gib = _gib(memory)
    types = types_with(names, least=int(least), most=int(most), gib=gib)
    if types:
        task.machine["instance"] = types
    else:
        task.note(
            "resources.gpu", f"no type of EC2 that is known here has {brief(asked)}: set machine.instance"
        )
    if isinstance(asked, Mapping):
        more = [key for key in asked if key not in ("name", "count", "memory")]
        note_unknown(
            task,
            "resources.gpu.",
            more,
            (),
            dict.fromkeys(map(str, more), "look at machine.instance: it was left out"),
        )


def _gpu(asked: Any) -> tuple[list[str], str, str]:
    """Return names, count and memory of `gpu`: a number, a text such as A100:80GB:2, or a mapping."""
    if isinstance(asked, Mapping):
        named = asked.get("name")
        names = named if isinstance(named, list) else [named] if named else []
        return [str(name) for name in names], str(asked.get("count", 1)), str(asked.get("memory", ""))
    names, count, memory = list[str](), "1", ""
    for token in str(asked).replace(" ", "").split(":"):
        if re.fullmatch(r"nvidia|amd|google|tpu|intel", token, re.IGNORECASE):
            continue
        if token[:1].isalpha():
            names = token.split(",")
        elif any(letter.isalpha() for letter in token):
            memory = token
        elif token:
            count = token
    return names, count, memory


def _range(text: str) -> tuple[float, float]:
    """Return the limits of `2`, `1..8`, `4..` or `..8`; (0, 0) for anything else, which no type has."""
    low, dots, high = text.replace(" ", "").partition("..")
    try:
        least = float(low) if low else 1.0
        most = (float(high) if high else 1_000.0) if dots else least
    except ValueError:
        return 0.0, 0.0
    return (max(1.0, least), most) if math.isfinite(least) and math.isfinite(most) else (0.0, 0.0)


def _gib(text: str) -> float:
    """Return the least memory of `24GB`, `24GB..` or `16GB..80GB`; 0 if there is none."""
    match = _MEMORY.match(text.replace(" ", ""))
    if not match:
        return 0.0
    return float(match[1]) * {"TB": 1024.0, "MB": 1 / 1024}.get((match[2] or "GB").upper(), 1.0)
