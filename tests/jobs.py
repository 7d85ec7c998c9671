"""Jobs for tests that go through models and targets."""

from __future__ import annotations

from typing import Any

from trainer import models, targets
from trainer.base.own_file import OwnFile
from trainer.base.settings import keys_of
from trainer.job.job import _NAME_HELP, Job, job_from, job_of
from trainer.job.tables import HOMES, TABLES


def job_keys(job: Job) -> list[tuple[str, Any, str]]:
    """Return (key, default, help) of every key that a job has, with its table: train.epochs."""
    plain = job_from({table: getattr(job, table).choice for table in HOMES})
    keys: list[tuple[str, Any, str]] = [("name", plain.name, _NAME_HELP)]
    used = plain.to_dict()
    for table in (table for table in TABLES if table in used):
        if table in HOMES and not isinstance(getattr(job, table), OwnFile):
            names, kind = ", ".join(HOMES[table]), "Model" if table == "model" else "Target, what is forecast"
            default = models.DEFAULT if table == "model" else targets.default_of(job.model.name)
            keys.append((f"{table}.name", default, f"{kind}: {names}."))
        for key, item in keys_of(getattr(plain, table)).items():
            if key == "folder":  # of a script
                continue
            keys.append((f"{table}.{key}", getattr(getattr(plain, table), item.name), item.metadata["help"]))
    return keys


def keys_for(keys: dict[str, Any], *, model: str, target: str) -> dict[str, Any]:
    """Return those of the keys that a job of this model and target has, with both names."""
    known = {key.rpartition(".")[2] for key, _, _ in job_keys(job_of(model=model, target=target))}
    return {"model": model, "target": target, **{key: value for key, value in keys.items() if key in known}}


# The fastest way of a shape of model, as a run measured it and memory/measurements.json holds it.
MEASURED: dict[str, Any] = {
    "strategy": "fused",
    "pack": 8,
    "micro_batch": 256,
    "activation_checkpointing": False,
    "batch": 0,
    "windows_per_second": 9e5,
    "memory_per_model_gib": 0.5,
    "torch": "2.13",
    "date": "2026-11-21",
}
