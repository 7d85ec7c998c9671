"""Jobs for tests that go through models and targets."""

from __future__ import annotations

from typing import Any

from trainer import models, targets
from trainer.base.own_file import OwnFile
from trainer.base.settings import CHUNKS, keys_of
from trainer.data.table import DataSettings
from trainer.job.agent import AgentSettings
from trainer.job.job import Job
from trainer.job.machine import MachineSettings
from trainer.job.reading import job_from, parse_job
from trainer.job.script import ScriptSettings
from trainer.job.tables import HOMES, TABLES
from trainer.job.train import ExpertSettings, TrainSettings

# Models and targets that make a job: an agent's model reads windows.
PAIRS = [
    (model, target)
    for model, home in models.MODELS.items()
    for target, its in targets.TARGETS.items()
    if not (its.acts and home.reads == CHUNKS)
]
SHORT = {"data": "data.path", "model": "model.name", "target": "target.name"}


def job_of(**keys: Any) -> Job:
    """Build a job from keys that may be named without their tables, as Python's arguments are."""
    return parse_job({}, full(keys))


def with_settings(job: Job, **keys: Any) -> Job:
    """Return the job with keys changed, named as in `job_of`: as a job file would have them."""
    return parse_job(job.to_dict(), full(keys))


def sets(*assignments: str) -> tuple[str, ...]:
    """Return the arguments of a command that set these keys: `train.epochs=3`."""
    return tuple(word for assignment in assignments for word in ("--set", assignment))


def full(keys: dict[str, Any]) -> dict[str, Any]:
    """Return the keys named with their tables: the first that has each, of any model and target."""
    homes = [(table, home) for table, members in HOMES.items() for home in members.values()]
    tables = [
        ("data", DataSettings),
        *homes,
        ("agent", AgentSettings),
        ("train", TrainSettings),
        ("expert", ExpertSettings),
    ]
    places = {
        key: f"{table}.{key}"
        for table, cls in reversed([*tables, ("machine", MachineSettings), ("script", ScriptSettings)])
        for key in keys_of(cls)
    }
    return {{**places, **SHORT}.get(key, key): value for key, value in keys.items()}


def job_keys(job: Job) -> list[tuple[str, Any, str]]:
    """Return (key, default, help) of every key that a job has, with its table: train.epochs."""
    plain = job_from({table: getattr(job, table).choice for table in HOMES})
    keys = [(key, getattr(plain, item.name), item.metadata["help"]) for key, item in keys_of(Job).items()]
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
