"""What tuners found: the fastest way to train each shape of model on each profile, and how a job takes it.

Owns the entry, the form of its two homes (`tuned.json` beside the user's profiles, `memory/tuned/<profile>.json` in a bucket)
and what of it a job takes: what the job names stands. Measures nothing: `trainer.train.tuning` does. Standard library only.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer.errors import UsageError
from trainer.gpu_profiles.chips import GpuProfile, user_file
from trainer.job import Job, with_settings
from trainer.train.settings import STRATEGIES

TUNED = "tuned.json"  # beside the user's profiles
MEMORY = "memory/tuned/"  # in the bucket
FORMAT = 1
OPEN = ("strategy", "pack", "micro_batch", "activation_checkpointing")  # what a tuner chooses where the job does not
MOST = {"pack": 4096, "micro_batch": 1 << 24, "batch": 1 << 24}
_NUMBERS = ("windows_per_second", "memory_per_model_gib")
_LONGEST_TEXT = 200

Entry = dict[str, Any]


def key_of(profile: GpuProfile) -> str:
    """Return what a chip's findings are kept under: its profile's name; a share of a chip, or an unknown one, has its own."""
    if profile.share < 1:
        return f"{profile.name}_1of{round(1 / profile.share)}"
    if profile.name == "unknown":
        return "unknown_" + "".join(letter if letter.isalnum() else "_" for letter in profile.chip.lower())[:60]
    return profile.name


def shape_of(job: Job) -> str:
    """Return what a finding is about: the model's shape, and what the job would not let the tuner choose."""
    named = [name for name in OPEN if getattr(job.train, name) not in ("auto", 0, False)]
    sizes = [f"{name}={getattr(job.model, name)}" for name in job.model.shape]
    how = [f"{name}={getattr(job.train, name)}" for name in ("batch", "precision", *named)]
    return " ".join([f"model={job.model.name}", *sizes, *how])


def with_entry(job: Job, entry: Mapping[str, Any]) -> Job:
    """Return the job as a tuner found it fastest, where it leaves the choice open."""
    return with_settings(
        job,
        strategy=entry["strategy"] if job.train.strategy == "auto" else job.train.strategy,
        pack=job.train.pack or entry["pack"],
        micro_batch=job.train.micro_batch or entry["micro_batch"],
        activation_checkpointing=job.train.activation_checkpointing or entry["activation_checkpointing"],
        batch=job.train.batch or entry["batch"],
    )


def known_here(key: str, job: Job, *, torch: str) -> Entry | None:
    """Return what this machine remembers of the job's shape on a profile, found with the same torch; None for nothing.

    With another torch a strategy for GPUs would have to show again that it agrees with plain modules. Raises UsageError for a
    file that can't be read.
    """
    entry = _read_here().get(key, {}).get(shape_of(job))
    return entry if entry is not None and entry["torch"] == torch else None


def keep_here(key: str, shape: str, entry: Mapping[str, Any]) -> Path:
    """Keep a finding on this machine; return the file. Raises OSError where it can't be written."""
    path = user_file().with_name(TUNED)
    known = _read_here()
    known.setdefault(key, {})[shape] = dict(entry)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    partial.write_text(json.dumps(known, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    partial.replace(path)
    return path


def memory_key(key: str) -> str:
    """Return the object of a bucket that holds what is known of a profile."""
    return f"{MEMORY}{key}.json"


def from_memory(body: bytes) -> dict[str, Entry]:
    """Read such an object: shape -> entry. What is no entry of ours is left out, for memory is no reason to stop anything."""
    try:
        values = json.loads(body)
        entries = values["entries"] if values["format"] == FORMAT else {}
        return sound(entries)
    except (ValueError, KeyError, TypeError):
        return {}


def to_memory(key: str, entries: Mapping[str, Mapping[str, Any]]) -> bytes:
    """Write such an object."""
    return json.dumps({"format": FORMAT, "profile": key, "entries": dict(entries)}, indent=1, sort_keys=True).encode()


def sound(entries: Any) -> dict[str, Entry]:
    """Return shape -> entry of what is well formed in values from somewhere else, and of an entry only what we know."""
    if not isinstance(entries, Mapping):
        return {}
    found = {}
    for shape, values in entries.items():
        if isinstance(shape, str) and len(shape) <= _LONGEST_TEXT and (entry := _entry(values)) is not None:
            found[shape] = entry
    return found


def _entry(values: Any) -> Entry | None:
    """Return one entry, checked; None for anything else. Files of an older version lack what they knew nothing of."""
    if not isinstance(values, Mapping):
        return None
    values = {"activation_checkpointing": False, "batch": 0, "torch": "", "date": "", **dict.fromkeys(_NUMBERS, 0), **values}
    if values.get("strategy") not in STRATEGIES[1:] or not isinstance(values["activation_checkpointing"], bool):
        return None
    for name, most in MOST.items():
        value = values.get(name)
        if type(value) is not int or not (0 if name == "batch" else 1) <= value <= most:
            return None
    for name in _NUMBERS:
        if type(values[name]) not in (int, float) or not 0 <= values[name] < 1e12:
            return None
    for name in ("torch", "date"):
        if not isinstance(values[name], str) or len(values[name]) > _LONGEST_TEXT:
            return None
    return {name: values[name] for name in (*OPEN, "batch", *_NUMBERS, "torch", "date")}


def _read_here() -> dict[str, dict[str, Entry]]:
    path = user_file().with_name(TUNED)
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {key: sound(entries) for key, entries in found.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError) as error:
        raise UsageError(
            f"what was tuned can't be read from {path}", why=str(error), do="Delete the file, tune again."
        ) from error
