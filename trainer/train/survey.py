"""The look at the data before any worker starts: what is there, what each symbol offers, and what is wrong with it.

Candles are read and windows are counted, without features. Where no symbol can be trained on, the job ends here, before a
minute is spent on it. Where some can, the others stay in the list, and the worker that gets one of them says what is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.data.candles import Candles, FileRead, read_candles
from trainer.errors import DataError
from trainer.job import Job
from trainer.plan.plans import Plan, plan_folds
from trainer.train.source import source_gib
from trainer.train.task import Task


@dataclass(frozen=True, kw_only=True)
class Survey:
    """The models to train, and the data summary that the `started` event carries."""

    tasks: tuple[Task, ...]
    data: dict[str, Any]


def survey(job: Job, data: Path) -> Survey:
    """Read every candle of the job once and plan its models. Raises DataError where no symbol can be trained on."""
    candle_set = read_candles(
        data, symbols=job.data.symbols, timeframe=job.data.timeframe, bars=job.data.bars, columns=job.data.columns
    )
    tasks: list[Task] = []
    symbols, refused = {}, list[DataError]()
    for symbol, candles in candle_set.symbols.items():
        try:
            plans = plan_folds(candles, job)
        except DataError as error:
            refused.append(error)
            visits = [0] * job.data.folds
        else:
            symbols[symbol] = _summary(candles, plans)
            visits = [_visits(plan, job) for plan in plans]
        tasks += _tasks(candles, visits, job, files=[file for file in candle_set.files if symbol in file.symbols])
    if not symbols:
        raise refused[0]
    return Survey(
        tasks=tuple(tasks),
        data={
            "files": [{"file": read.file, "bars": read.bars, "symbols": list(read.symbols)} for read in candle_set.files],
            "timeframe": candle_set.timeframe,
            "bars": candle_set.bars,
            "holes": sum(summary["holes"] for summary in symbols.values()),
            "synthetic": candle_set.synthetic,
            "symbols": symbols,
            "refused": [str(error) for error in refused],
        },
    )


def _tasks(candles: Candles, visits: Sequence[int], job: Job, *, files: Sequence[FileRead]) -> list[Task]:
    """Return a symbol's models: one for each fold and seed. `visits` are those of an epoch, by fold."""
    tasks = []
    rows = sum(held.bars for file in files for held in file.holds)  # a worker reads these files whole
    memory_gib = source_gib(bars=len(candles), rows=rows, folds=len(visits), data=job.data)
    for fold, visits_of_fold in enumerate(visits, 1):
        for seed in range(job.train.seed, job.train.seed + job.train.seeds):
            task = Task(
                symbol=candles.symbol,
                family=job.model.name,
                target=job.target.name,
                timeframe=candles.timeframe,
                estimate=job.train.epochs * visits_of_fold,
                seed=seed,
                fold=fold,
                files=tuple(file.file for file in files),
                source_gib=memory_gib,
                several=job.data.folds * job.train.seeds > 1,
            )
            tasks.append(task)
    return tasks


def _visits(plan: Plan, job: Job) -> int:
    """Return how many windows an epoch visits, as an estimate of its time."""
    windows = _windows(plan)
    # A window that is only evaluated costs about a quarter of one that is trained on (measured, cpu.py).
    return windows["train"] + (windows["validation"] + windows["test"] // job.train.epochs) // 4


def _summary(candles: Candles, plans: Sequence[Plan]) -> dict[str, Any]:
    last = plans[-1]
    return {
        "bars": len(candles),
        "holes": int(last.holes.sum()),
        "ties": last.ties,
        "calendar": last.calendar,
        "windows": _windows(last),
        "folds": [_windows(plan) for plan in plans],
        **last.horizon,
    }


def _windows(plan: Plan) -> dict[str, int]:
    return {span: len(bars) for span, bars in plan.bars.items()}
