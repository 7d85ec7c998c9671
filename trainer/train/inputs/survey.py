"""Pieces of a job and the cost of each, from the plan of its data.

Symbols that planning refused keep their pieces: the worker that gets one reports the error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainer.bars.document import DataPlan, FoldPlan
from trainer.job.job import Job
from trainer.job.pieces import pieces_of
from trainer.job.pieces.piece import Piece, SeriesWork
from trainer.train.inputs.source import source_gib


@dataclass(frozen=True, kw_only=True)
class Survey:
    """The pieces to train, and the data summary that the `started` event carries."""

    pieces: tuple[Piece, ...]
    data: dict[str, Any]


def survey(job: Job, plan: DataPlan) -> Survey:
    """Return the pieces of a planned job."""
    symbols = job.data.chosen((*plan.symbols, *plan.refused))
    series = [_series(symbol, job, plan) for symbol in symbols]
    return Survey(pieces=pieces_of(job, series, timeframe=plan.timeframe), data=plan.summary())


def _series(symbol: str, job: Job, plan: DataPlan) -> SeriesWork:
    """Return a symbol's input to piece planning; 0 bars and windows if planning refused it."""
    entry = plan.symbols.get(symbol)
    if entry is None:
        nothing = (0,) * job.data.folds
        return SeriesWork(symbol=symbol, bars=0, windows=nothing, visits=nothing)
    return SeriesWork(
        symbol=symbol,
        bars=entry.bars,
        windows=tuple(fold.bars["train"] for fold in entry.folds),
        visits=tuple(_visits(fold, job) for fold in entry.folds),
        memory_gib=source_gib(bars=entry.bars, rows=entry.rows, folds=len(entry.folds), data=job.data),
        once_gib=source_gib(bars=0, rows=0, folds=0),
    )


def _visits(fold: FoldPlan, job: Job) -> int:
    """Return the cost of an epoch, in training windows. Evaluating a window costs about a quarter of training
    on it.
    """
    return fold.bars["train"] + (fold.bars["validation"] + fold.bars["test"] // job.train.epochs) // 4
