"""Jobs for tests that go through models and targets."""

from __future__ import annotations

from typing import Any

from trainer.job import job_keys, job_of


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
