"""The look at the data before any worker starts: what is there, what each symbol offers, and what is wrong with it.

Candles are read and windows are counted, without features: bad data ends the job here, before a minute is spent on it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.config import Job
from trainer.data.candles import Candles, CandleSet, read_candles
from trainer.data.labels import WindowPlan
from trainer.data.plans import horizon_of, plan_folds
from trainer.train.source import source_gib
from trainer.train.task import Task


@dataclass(frozen=True, kw_only=True)
class Survey:
    """The models to train, and the data summary that the `started` event carries."""

    tasks: tuple[Task, ...]
    data: dict[str, Any]


def survey(job: Job, data: Path) -> Survey:
    """Read every candle of the job once and plan its models. Raises DataError for the first thing that is wrong."""
    candle_set = read_candles(data, symbols=job.symbols, timeframe=job.timeframe, bars=job.bars)
    tasks: list[Task] = []
    symbols = {}
    rows = _rows_read(candle_set)
    for symbol, candles in candle_set.symbols.items():
        plans = plan_folds(candles, job)
        tasks += _tasks(candles, plans, job, rows=rows[symbol])
        symbols[symbol] = _summary(candles, plans)
    return Survey(
        tasks=tuple(tasks),
        data={
            "files": [{"file": read.file, "bars": read.bars, "symbols": list(read.symbols)} for read in candle_set.files],
            "timeframe": candle_set.timeframe,
            "bars": candle_set.bars,
            "holes": sum(summary["holes"] for summary in symbols.values()),
            "synthetic": candle_set.synthetic,
            "symbols": symbols,
        },
    )


def _rows_read(candle_set: CandleSet) -> Counter[str]:
    """Return how many rows the files of each symbol have: a worker that wants the symbol reads them all."""
    rows: Counter[str] = Counter()
    for file in candle_set.files:
        rows.update(dict.fromkeys(file.symbols, sum(held.bars for held in file.holds)))
    return rows


def _tasks(candles: Candles, plans: Sequence[WindowPlan], job: Job, *, rows: int) -> list[Task]:
    """Return a symbol's models: one for each fold and seed."""
    tasks = []
    memory_gib = source_gib(bars=len(candles), rows=rows, folds=len(plans))
    for fold, plan in enumerate(plans, 1):
        windows = _windows(plan)
        # A window that is only evaluated costs about a quarter of one that is trained on (measured, cpu.py).
        visits = windows["train"] + (windows["validation"] + windows["test"] // job.epochs) // 4
        for seed in range(job.seed, job.seed + job.seeds):
            task = Task(
                symbol=candles.symbol,
                family=job.model,
                timeframe=candles.timeframe,
                estimate=job.epochs * visits,
                seed=seed,
                fold=fold,
                source_gib=memory_gib,
                several=job.folds * job.seeds > 1,
            )
            tasks.append(task)
    return tasks


def _summary(candles: Candles, plans: Sequence[WindowPlan]) -> dict[str, Any]:
    last = plans[-1]
    return {
        "bars": len(candles),
        "holes": int(last.holes.sum()),
        "ties": last.ties,
        "calendar": last.calendar,
        "windows": _windows(last),
        "folds": [_windows(plan) for plan in plans],
        **horizon_of(last),
    }


def _windows(plan: WindowPlan) -> dict[str, int]:
    return {span: len(starts) for span, starts in plan.starts.items()}
