"""The models of a job and what each costs, from the plan of its data.

Where some symbols can be trained on, those that planning refused stay in the list, and the worker that gets one of them says
what is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trainer.job import Job
from trainer.plan.document import DataPlan, FoldPlan
from trainer.train.source import source_gib
from trainer.train.task import Task


@dataclass(frozen=True, kw_only=True)
class Survey:
    """The models to train, and the data summary that the `started` event carries."""

    tasks: tuple[Task, ...]
    data: dict[str, Any]


def survey(job: Job, plan: DataPlan) -> Survey:
    """Return the models of a planned job."""
    tasks: list[Task] = []
    for symbol in job.data.chosen((*plan.symbols, *plan.refused)):
        entry = plan.symbols.get(symbol)
        if entry is None:
            tasks += _tasks(symbol, [0] * job.data.folds, job, timeframe=plan.timeframe, memory_gib=0.0)
            continue
        memory_gib = source_gib(bars=entry.bars, rows=entry.rows, folds=len(entry.folds), data=job.data)
        visits = [_visits(fold, job) for fold in entry.folds]
        tasks += _tasks(symbol, visits, job, timeframe=plan.timeframe, memory_gib=memory_gib)
    return Survey(tasks=tuple(tasks), data=plan.summary())


def _tasks(symbol: str, visits: Sequence[int], job: Job, *, timeframe: str, memory_gib: float) -> list[Task]:
    """Return a symbol's models: one for each fold and seed. `visits` are those of an epoch, by fold."""
    return [
        Task(
            symbol=symbol,
            family=job.model.name,
            target=job.target.name,
            timeframe=timeframe,
            estimate=job.train.epochs * visits_of_fold,
            seed=seed,
            fold=fold,
            source_gib=memory_gib,
            several=job.data.folds * job.train.seeds > 1,
        )
        for fold, visits_of_fold in enumerate(visits, 1)
        for seed in range(job.train.seed, job.train.seed + job.train.seeds)
    ]


def _visits(fold: FoldPlan, job: Job) -> int:
    """Return how many windows an epoch visits, as an estimate of its time."""
    # A window that is only evaluated costs about a quarter of one that is trained on (measured, cpu.py).
    return fold.bars["train"] + (fold.bars["validation"] + fold.bars["test"] // job.train.epochs) // 4
