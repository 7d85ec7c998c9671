"""The cache of measurements: the fastest settings for each shape of model on each profile, with rate and
memory.

Its form is always {profile: {shape: entry}}: in `measurements.json` beside the user's profiles, in
`memory/measurements.json` in the bucket, as `tuned` in a manifest and in a node's result. Readers drop
malformed entries: a node may have written them, and a bad cache must not stop anything. Standard library
only.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Any

from trainer.base import environment
from trainer.base.files import read_plain, whole_file
from trainer.job.job import Job
from trainer.job.pieces import takes_all_devices
from trainer.job.train import STRATEGIES

FILE = "measurements.json"
OBJECT = f"memory/{FILE}"  # in the bucket
OPEN = ("strategy", "pack", "micro_batch", "activation_checkpointing")  # chosen by a trial unless by the job
GPU_PACKS = (1, 4, 8, 16, 32)  # models at a time that a trial on a GPU tries
LONGEST_TEXT = 200
MOST_BYTES = 64 << 20  # of this machine's file
USUAL_INPUTS = len(Job().data.inputs)
PROFILE = re.compile(r"[A-Za-z0-9_-]{1,80}")

Entry = dict[str, Any]
Measurements = dict[str, dict[str, Entry]]


def shape_of(job: Job) -> str:
    """Return the key of an entry: the model's shape and the settings that the job fixes."""
    named = {name: value for name in OPEN if (value := getattr(job.expert, name)) not in ("auto", 0, False)}
    sizes = [f"{name}={getattr(job.model, name)}" for name in job.model.shape]
    fixed = {"batch": job.train.batch, "precision": job.train.precision, **named}
    settings = [f"{name}={value}" for name, value in fixed.items()]
    inputs = [f"inputs={len(job.data.inputs)}"] if len(job.data.inputs) != USUAL_INPUTS else []
    return " ".join([f"model={job.model.name}", *sizes, *inputs, *settings])


def of_a_device(job: Job, *, devices: int, pieces: int, on_gpu: bool) -> Job:
    """Return the job that a trial times on one of a machine's devices, which train a run's pieces.

    For one of several ranks: plain modules, with a rank's share of the batch. Of few models that a GPU can
    train at a time: all of its models, since their number decides which strategy is the fastest (on an H100
    streams for four of the reference model, fused for 32; 2026-11-26).
    """
    if devices > 1 and takes_all_devices(job):
        batch = math.ceil(job.train.batch / devices)
        alone = job.with_expert(micro_batch=min(job.expert.micro_batch, batch), strategy="sequential", pack=1)
        return alone.with_train(batch=batch)
    models = max(1, math.ceil(pieces / devices))
    few = on_gpu and job.model.has_stacked_form and not job.expert.pack and models < max(GPU_PACKS)
    return job.with_expert(pack=models) if few else job


def with_entry(job: Job, entry: Mapping[str, Any]) -> Job:
    """Return the job with the entry's choice for each setting that the job leaves open."""
    chosen = job.with_expert(
        strategy=entry["strategy"] if job.expert.strategy == "auto" else job.expert.strategy,
        pack=job.expert.pack or entry["pack"],
        micro_batch=job.expert.micro_batch or entry["micro_batch"],
        activation_checkpointing=job.expert.activation_checkpointing or entry["activation_checkpointing"],
    )
    return chosen.with_train(batch=job.train.batch or entry["batch"])


def file_here() -> Path:
    """Return this machine's file, which may not exist."""
    return environment.profiles_file().with_name(FILE)


def read_here() -> Measurements:
    """Return this machine's measurements."""
    try:
        return from_bytes(read_plain(file_here(), most_bytes=MOST_BYTES))
    except OSError:
        return {}


def known_here(key: str, job: Job, *, torch: str) -> Entry | None:
    """Return the entry for the job's shape on a profile if it was measured with the same torch, else None.

    With another torch, a strategy for GPUs would have to be compared with plain modules again.
    """
    entry = read_here().get(key, {}).get(shape_of(job))
    return entry if entry is not None and entry["torch"] == torch else None


def keep_here(key: str, shape: str, entry: Mapping[str, Any]) -> Path:
    """Add an entry to this machine's file and return the file. Raises OSError if it can't be written."""
    path = file_here()
    with whole_file(path) as partial:
        partial.write_bytes(to_bytes(merged(read_here(), {key: {shape: dict(entry)}})))
    return path


def merged(known: Measurements, newer: Measurements) -> Measurements:
    """Return all entries of both; for a shape in both, the newer's."""
    return {key: {**known.get(key, {}), **newer.get(key, {})} for key in (*known, *newer)}


def to_bytes(measurements: Mapping[str, Mapping[str, Entry]]) -> bytes:
    """Return the measurements as stored: JSON."""
    return (json.dumps(measurements, indent=1, sort_keys=True) + "\n").encode()


def from_bytes(body: bytes) -> Measurements:
    """Return stored measurements; {} if they can't be read."""
    try:
        return sound(json.loads(body))
    except (ValueError, RecursionError):
        return {}


def sound(values: Any) -> Measurements:
    """Return the well-formed part of untrusted values."""
    kept: Measurements = {}
    for key, shapes in values.items() if isinstance(values, Mapping) else ():
        if isinstance(key, str) and PROFILE.fullmatch(key) and isinstance(shapes, Mapping):
            entries = {shape: sound_entry(entry) for shape, entry in shapes.items() if _is_text(shape)}
            kept[key] = {shape: entry for shape, entry in entries.items() if entry is not None}
    return kept


def sound_entry(values: Any) -> Entry | None:
    """Return an entry reduced to known keys if each value has its type and is within its bounds, else
    None.
    """
    if not isinstance(values, Mapping):
        return None
    entry = {name: values.get(name, default) for name, (default, _) in _KINDS.items()}
    return entry if all(is_good(entry[name]) for name, (_, is_good) in _KINDS.items()) else None


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= LONGEST_TEXT


def _is_day(value: Any) -> bool:
    with suppress(ValueError):
        return _is_text(value) and (not value or bool(date.fromisoformat(value)))
    return False


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < 1e12


_KINDS: dict[str, tuple[Any, Callable[[Any], bool]]] = {  # key of an entry -> default, and check of a value
    "strategy": (None, lambda value: value in STRATEGIES[1:]),
    "pack": (None, lambda value: type(value) is int and 1 <= value <= 4096),
    "micro_batch": (None, lambda value: type(value) is int and 1 <= value <= 1 << 24),
    "activation_checkpointing": (False, lambda value: isinstance(value, bool)),
    "batch": (0, lambda value: type(value) is int and 0 <= value <= 1 << 24),
    "windows_per_second": (0, _is_number),
    "memory_per_model_gib": (0, _is_number),
    "torch": ("", _is_text),
    "date": ("", _is_day),
}
