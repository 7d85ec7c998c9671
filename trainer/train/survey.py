"""Pieces of a job and the cost of each, from the plan of its data.

If some symbols can be trained on, those that planning refused stay among the series, and the worker that gets a piece of one
reports the error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainer.job import Job
from trainer.pieces import pieces_of
from trainer.pieces.piece import Piece, SeriesWork
from trainer.plan.document import DataPlan, FoldPlan
from trainer.train.source import source_gib


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
    """Return the input of piece planning; nothing for a symbol that planning refused."""
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
    """Return the windows of an epoch, as a measure of its time."""
    # A window that is only evaluated costs about a quarter of one that is trained on (measured, cpu.py).
    return fold.bars["train"] + (fold.bars["validation"] + fold.bars["test"] // job.train.epochs) // 4
