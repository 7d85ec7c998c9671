"""The look at the data before any worker starts: what is there, what each symbol offers, and what is wrong with it.

Candles are read and windows are counted, without features: bad data ends the job here, before a minute is spent on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.config import Job
from trainer.data.candles import Candles, read_candles
from trainer.data.plans import horizon_of, plan_symbol
from trainer.data.volatility import VolatilityPlan
from trainer.errors import DataError
from trainer.train.task import Task


@dataclass(frozen=True, kw_only=True)
class Survey:
    """The models to train, and the data summary that the `started` event carries."""

    tasks: tuple[Task, ...]
    data: dict[str, Any]


def survey(job: Job, data: Path) -> Survey:
    """Read every candle of the job once and plan its models. Raises DataError for the first thing that is wrong."""
    candle_set = read_candles(data, symbols=job.symbols, timeframe=job.timeframe, bars=job.bars)
    tasks, symbols = [], {}
    for symbol, candles in candle_set.symbols.items():
        task, summary = _plan(candles, job)
        tasks.append(task)
        symbols[symbol] = summary
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


def _plan(candles: Candles, job: Job) -> tuple[Task, dict[str, Any]]:
    plan = plan_symbol(candles, job)
    windows = {span: len(starts) for span, starts in plan.starts.items()}
    _refuse_large_batch(candles.symbol, job, len(plan.chunks) if isinstance(plan, VolatilityPlan) else windows["train"])
    # A window that is only evaluated costs about a quarter of one that is trained on (measured, cpu.py).
    visits = windows["train"] + (windows["validation"] + windows["test"] // job.epochs) // 4
    task = Task(symbol=candles.symbol, family=job.model, timeframe=candles.timeframe, estimate=job.epochs * visits)
    summary = {
        "bars": len(candles),
        "holes": int(plan.holes.sum()),
        "ties": plan.ties,
        "calendar": plan.calendar,
        "windows": windows,
        **horizon_of(plan),
    }
    return task, summary


def _refuse_large_batch(symbol: str, job: Job, available: int) -> None:
    key, kind = ("batch_chunks", "chunks") if job.model == "tcn" else ("batch", "windows")
    if getattr(job, key) > available:
        raise DataError(
            f"{key} {getattr(job, key)} is larger than the {available} training {kind} of {symbol}",
            do=f"Set {key} to fewer{', lower chunk' if job.model == 'tcn' else ''}, or give more bars.",
        )
