"""Settings that need less memory, after a worker ran out of it: half the pack, then half the slices. Pure."""

from __future__ import annotations

import math
from dataclasses import replace

from trainer.job.job import Job
from trainer.machines.shapes import OPEN
from trainer.train.workers.assignment import WorkerSettings


def smaller(job: Job, *, models: int = 1, ranks: int = 1) -> Job | None:
    """Return the job for less memory than `models` of it together took, or one on so many ranks; None if one
    model can't take less.
    """
    expert = job.expert
    if models > 1:
        return job.with_expert(pack=max(1, min(expert.pack or models, models) // 2))
    share = math.ceil(job.train.batch / ranks)
    windows = min(expert.micro_batch or share, share)
    if not job.cost.may_slice or windows <= 1:
        return None
    return job.with_expert(pack=1, micro_batch=windows // 2)


def smallest(one: Job, other: Job) -> Job:
    """Return the first job with the smaller pack and the smaller slices of both."""
    pack = min(one.expert.pack, other.expert.pack)
    windows = [job.expert.micro_batch for job in (one, other) if job.expert.micro_batch]
    return one.with_expert(pack=pack, micro_batch=min(windows, default=0))


def with_job(settings: WorkerSettings, job: Job) -> WorkerSettings:
    """Return the settings of workers for a job that takes less memory; their choice says so, for cards."""
    parts = {name: getattr(job.expert, name) for name in OPEN}
    lowered = {name: "memory" for name, value in parts.items() if settings.choice.get(name) != value}
    choice = {**settings.choice, **parts, "from": {**settings.choice.get("from", {}), **lowered}}
    return replace(settings, job=job, choice=choice if settings.choice else {})
