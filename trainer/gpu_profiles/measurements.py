"""The cache of measurements: the fastest way to train each shape of model on each profile, its rate and its memory.

It has one form, {profile: {shape: entry}}, wherever it is stored: `measurements.json` beside the user's profiles,
`memory/measurements.json` in the bucket, `tuned` in a manifest and in a node's result. Readers drop what is not well formed,
for a node may have written it, and a cache is no reason to stop anything. Standard library only.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Any

from trainer import environment
from trainer.config import STRATEGIES, Job, with_settings

FILE = "measurements.json"
OBJECT = f"memory/{FILE}"  # in the bucket
OPEN = ("strategy", "pack", "micro_batch", "activation_checkpointing")  # what a trial chooses where the job does not
MOST = {"pack": 4096, "micro_batch": 1 << 24, "batch": 1 << 24}
_NUMBERS = ("windows_per_second", "memory_per_model_gib")
_LONGEST_TEXT = 200
_PROFILE = re.compile(r"[A-Za-z0-9_-]{1,80}")

Entry = dict[str, Any]
Measurements = dict[str, dict[str, Entry]]


def shape_of(job: Job) -> str:
    """Return the key of an entry: the model's shape, and what the job itself decides."""
    named = [name for name in OPEN if getattr(job, name) not in ("auto", 0, False)]
    return " ".join(f"{name}={getattr(job, name)}" for name in ("model", *job.model_settings.shape, "precision", *named))


def with_entry(job: Job, entry: Mapping[str, Any]) -> Job:
    """Return the job with the entry's choice wherever the job leaves it open."""
    return with_settings(
        job,
        strategy=entry["strategy"] if job.strategy == "auto" else job.strategy,
        pack=job.pack or entry["pack"],
        micro_batch=job.micro_batch or entry["micro_batch"],
        activation_checkpointing=job.activation_checkpointing or entry["activation_checkpointing"],
        batch=job.batch or entry["batch"],
    )


def file_here() -> Path:
    """Return this machine's file, which may not exist."""
    return environment.profiles_file().with_name(FILE)


def read_here() -> Measurements:
    """Return this machine's measurements."""
    try:
        return from_bytes(file_here().read_bytes())
    except OSError:
        return {}


def known_here(key: str, job: Job, *, torch: str) -> Entry | None:
    """Return the entry for the job's shape on a profile, if it was measured with the same torch.

    With another torch a strategy for GPUs would have to be compared with plain modules again.
    """
    entry = read_here().get(key, {}).get(shape_of(job))
    return entry if entry is not None and entry["torch"] == torch else None


def keep_here(key: str, shape: str, entry: Mapping[str, Any]) -> Path:
    """Add an entry to this machine's file and return the file. Raises OSError if it can't be written."""
    path = file_here()
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    partial.write_bytes(to_bytes(merged(read_here(), {key: {shape: dict(entry)}})))
    partial.replace(path)
    return path


def merged(known: Measurements, newer: Measurements) -> Measurements:
    """Return both; of two entries for one shape, the newer."""
    return {key: {**known.get(key, {}), **newer.get(key, {})} for key in (*known, *newer)}


def to_bytes(measurements: Mapping[str, Mapping[str, Entry]]) -> bytes:
    """Return the stored form."""
    return (json.dumps(measurements, indent=1, sort_keys=True) + "\n").encode()


def from_bytes(body: bytes) -> Measurements:
    """Read the stored form; an unreadable one holds nothing."""
    try:
        return sound(json.loads(body))
    except (ValueError, RecursionError):
        return {}


def sound(values: Any) -> Measurements:
    """Return what is well formed in values from elsewhere: known profile names, short shapes, checked entries."""
    found: Measurements = {}
    for key, shapes in values.items() if isinstance(values, Mapping) else ():
        if isinstance(key, str) and _PROFILE.fullmatch(key) and isinstance(shapes, Mapping):
            entries = {shape: sound_entry(entry) for shape, entry in shapes.items() if _is_text(shape)}
            found[key] = {shape: entry for shape, entry in entries.items() if entry is not None}
    return found


def sound_entry(values: Any) -> Entry | None:
    """Return the known keys of an entry if each value has its type and lies within its bounds, else None."""
    if not isinstance(values, Mapping):
        return None
    values = {"activation_checkpointing": False, "batch": 0, "torch": "", "date": "", **dict.fromkeys(_NUMBERS, 0), **values}
    good = (
        values.get("strategy") in STRATEGIES[1:]
        and isinstance(values["activation_checkpointing"], bool)
        and all(_is_whole(values.get(name), 0 if name == "batch" else 1, most) for name, most in MOST.items())
        and all(type(values[name]) in (int, float) and 0 <= values[name] < 1e12 for name in _NUMBERS)
        and _is_text(values["torch"])
        and _is_text(values["date"])
        and (not values["date"] or _is_date(values["date"]))
    )
    return {name: values[name] for name in (*OPEN, "batch", *_NUMBERS, "torch", "date")} if good else None


def _is_whole(value: Any, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= _LONGEST_TEXT


def _is_date(text: str) -> bool:
    with suppress(ValueError):
        return bool(date.fromisoformat(text))
    return False
