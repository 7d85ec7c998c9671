"""The shape of a job's models, and the settings that were chosen for one: in checkpoints, cards and cases of
calibration. Standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from trainer.job.job import Job
from trainer.job.train import STRATEGIES

OPEN = ("strategy", "pack", "micro_batch", "activation_checkpointing")  # chosen unless the job has them
MODELS_AT_A_TIME = 32  # on one GPU, at most, unless the job says otherwise
LONGEST_TEXT = 200
USUAL_INPUTS = len(Job().data.inputs)

Entry = dict[str, Any]


def shape_of(job: Job) -> str:
    """Return what the speed of a job's training depends on, as text: the model's shape and the settings that
    the job fixes.
    """
    named = {name: value for name in OPEN if (value := getattr(job.expert, name)) not in ("auto", 0, False)}
    sizes = [f"{name}={getattr(job.model, name)}" for name in job.model.shape]
    fixed = {"batch": job.train.batch, "precision": job.train.precision, **named}
    settings = [f"{name}={value}" for name, value in fixed.items()]
    inputs = [f"inputs={len(job.data.inputs)}"] if len(job.data.inputs) != USUAL_INPUTS else []
    return " ".join([f"model={job.model.name}", *sizes, *inputs, *settings])


def of_a_device(job: Job, *, devices: int, pieces: int, on_gpu: bool) -> Job:
    """Return the job as one of a machine's devices trains it, on which its speed depends.

    Of few models that a GPU can train at a time it trains all, and their number decides which strategy is the
    fastest (on an H100 streams for four of the reference model, fused for 32; 2026-11-26).
    """
    models = max(1, math.ceil(pieces / devices))
    few = on_gpu and job.model.has_stacked_form and not job.expert.pack and models < MODELS_AT_A_TIME
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


def sound_entry(values: Any) -> Entry | None:
    """Return a checkpoint's settings, reduced to known keys, if each has its type and is within its bounds,
    else None.
    """
    if not isinstance(values, Mapping):
        return None
    entry = {name: values.get(name, default) for name, (default, _) in _KINDS.items()}
    return entry if all(is_good(entry[name]) for name, (_, is_good) in _KINDS.items()) else None


_KINDS: dict[str, tuple[Any, Callable[[Any], bool]]] = {  # key of an entry -> default, and check of a value
    "strategy": (None, lambda value: value in STRATEGIES[1:]),
    "pack": (None, lambda value: type(value) is int and 1 <= value <= 4096),
    "micro_batch": (None, lambda value: type(value) is int and 1 <= value <= 1 << 24),
    "activation_checkpointing": (False, lambda value: isinstance(value, bool)),
    "batch": (0, lambda value: type(value) is int and 0 <= value <= 1 << 24),
    "memory_per_model_gib": (0, lambda value: type(value) in (int, float) and 0 <= value < 1e12),
    "torch": ("", lambda value: isinstance(value, str) and len(value) <= LONGEST_TEXT),
}
