"""A SkyPilot task as a job (docs.skypilot.co, SkyPilot YAML; looked up 2026-11-22)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer.base.errors import UsageError
from trainer.base.settings import brief
from trainer.importing.accelerators import types_with
from trainer.importing.imported import (
    ImportedTask,
    job_name,
    mapping_of,
    note_unknown,
    path_of,
    take_duration,
    take_variables,
    text_of,
)
from trainer.importing.shell import take_commands
from trainer.machines.instances import catalogue

TAKEN = ("name", "workdir", "resources", "envs", "secrets", "file_mounts", "setup", "run", "num_nodes")
ADVICE = {
    "experimental": "leave it out",
    "config": "leave it out: it is for clouds and Kubernetes",
    "volumes": (
        "a machine has the disk of the stack's setting volume_gib, or its own; data comes from data.folder"
    ),
    "event_callback": "a run's end is told by the stack's setting notify: docs/notifications.md",
}
RESOURCES = ("accelerators", "instance_type", "use_spot", "any_of", "ordered")
OF_RESOURCES = {
    "infra": "the region is AWS_REGION's, the zones are those of the stack",
    "cloud": "the cloud is AWS",
    "region": "the region is AWS_REGION's",
    "zone": "the zones are those of the stack: all that sell the type are asked",
    "cpus": "they come with the type: see mayfly launch --dry-run, and machine.instance",
    "memory": "it comes with the type: see mayfly launch --dry-run, and machine.instance",
    "disk_size": "the stack's setting volume_gib has it",
    "disk_tier": "the stack's volumes are gp3; fast types have disks of their own",
    "image_id": (
        "the image is AWS's for PyTorch, by the stack's setting image_line; packages: script.requirements"
    ),
    "ports": "nothing comes in: mayfly attach RUN --forward reaches a port",
    "labels": "every resource has the stack's tags",
    "autostop": "a machine ends with its script: machine.max_duration is the limit",
    "job_recovery": (
        "script.restarts starts again after a signal, on the same machine; a lost spot machine ends the run"
    ),
    "network_tier": "one machine a run needs none",
    "accelerator_args": "it is for TPUs, which AWS has not",
    "max_hourly_cost": "machine.budget bounds the dollars of a run",
}
VARIABLES = {
    "SKYPILOT_NUM_GPUS_PER_NODE": "$MAYFLY_DEVICES",
    "SKYPILOT_NUM_NODES": "1",
    "SKYPILOT_NODE_RANK": "0",
    "SKYPILOT_NODE_IPS": "127.0.0.1",
}


def from_skypilot(values: Mapping[str, Any], path: Path) -> tuple[ImportedTask, Path]:
    """Return a task as a job, and the folder of its files. Raises UsageError for a service."""
    if "service" in values:
        raise UsageError(
            f"{path} is a service", why="Mayfly trains and does not serve", do="Name a task file."
        )
    task = ImportedTask(name=job_name(values.get("name"), path.stem))
    note_unknown(task, "", values, TAKEN, ADVICE)
    workdir = values.get("workdir")
    if isinstance(workdir, Mapping):
        task.note("workdir", "a Git repository is not fetched: clone it, and name its folder in script.root")
        workdir = None
    root = path_of(text_of(workdir, "workdir") or ".", "workdir", path.parent)
    if values.get("num_nodes") not in (None, 1):
        task.note("num_nodes", "a run has one machine: choose a type with more GPUs in machine.instance")
    _take_resources(task, mapping_of(values.get("resources"), "resources"))
    for key in ("envs", "secrets"):
        take_variables(task, key, mapping_of(values.get(key), key))
    _take_mounts(task, mapping_of(values.get("file_mounts"), "file_mounts"), path.parent)
    take_duration(task, "max_duration", None)
    setup, run = text_of(values.get("setup"), "setup"), text_of(values.get("run"), "run")
    take_commands(task, setup, run, strict=False, renamed=VARIABLES, folder=bool(workdir))
    task.script |= {"files": ["."]} if workdir else {}
    return task, root


def _take_resources(task: ImportedTask, resources: dict[str, Any]) -> None:
    options = [resources]
    for key in ("any_of", "ordered"):
        entries = resources.get(key)
        if entries is not None:
            given = [
                mapping_of(entry, f"resources.{key}")
                for entry in (entries if isinstance(entries, list) else [entries])
            ]
            options = [{**resources, **entry} for entry in given]
            task.note(
                f"resources.{key}",
                "its GPUs and types are in machine.instance, in order; the rest of it is left out",
            )
    note_unknown(task, "resources.", resources, RESOURCES, OF_RESOURCES)
    types: list[str] = []
    for option in options:
        types += _types(task, option)
    if types:
        task.machine["instance"] = list(dict.fromkeys(types))
    if any(option.get("use_spot") is True for option in options):
        task.machine["market"] = "spot"


def _types(task: ImportedTask, option: Mapping[str, Any]) -> list[str]:
    """Return the types that one set of resources asks for."""
    if (name := option.get("instance_type")) is not None:
        if str(name) in catalogue():
            return [str(name)]
        task.note(
            "resources.instance_type",
            f"{brief(name)} is no GPU type of EC2 that is known here: set machine.instance",
        )
        return []
    asked = option.get("accelerators")
    if asked is None:
        return []
    entries = asked if isinstance(asked, list) else [asked]
    if isinstance(asked, Mapping):  # {A100: 8}, or a set {'A100:8', 'V100:8'}
        entries = [name if count is None else f"{name}:{count}" for name, count in asked.items()]
    types = []
    for entry in entries:
        match = re.fullmatch(r"([A-Za-z][\w -]*?)(?::(\d{1,4}(?:\.\d+)?))?", str(entry).strip())
        count = float(match[2] or 1) if match else 0.0
        found = (
            types_with([match[1]], least=int(count), most=int(count))
            if match and count == int(count) and count
            else []
        )
        if not found:
            task.note(
                "resources.accelerators",
                f"no type of EC2 that is known here has {brief(entry)}: set machine.instance",
            )
        types += found
    return types


def _take_mounts(task: ImportedTask, mounts: Mapping[str, Any], beside: Path) -> None:
    """Take the first mount that is read as the run's data."""
    for place, value in mounts.items():
        source = value.get("source") if isinstance(value, Mapping) else value
        mode = str(value.get("mode", "")).upper() if isinstance(value, Mapping) else ""
        key, source = f"file_mounts.{place}", source if isinstance(source, str) else ""
        local = bool(source) and "://" not in source
        if mode == "MOUNT" or (isinstance(value, Mapping) and not source):
            do = "write results to $MAYFLY_OUT and checkpoints to $MAYFLY_CHECKPOINTS, or make it data.folder"
            task.note(key, f"nothing is mounted: {do}")
        elif not (local or source.startswith("s3://")):
            task.note(
                key, "data comes from a folder or an s3:// prefix: copy it there, and name it in data.folder"
            )
        elif task.folder:
            task.note(key, "a run has one data.folder: put this below it")
        else:
            task.folder = str(path_of(source, key, beside)) if local else source
            task.note(key, f"it is data.folder now: read it at $MAYFLY_DATA instead of {place}")
