"""Pieces of a job and the cost of each, from the plan of its data.

Symbols that planning refused keep their pieces: the worker that gets one reports the error.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.bars.document import DataPlan, FoldPlan
from trainer.base.errors import UsageError
from trainer.base.files import read_plain
from trainer.base.strict_json import MOST_TEXT, Unsound, Value, check_values
from trainer.job.job import Job
from trainer.job.pieces import pieces_of
from trainer.job.pieces.piece import Piece, SeriesWork
from trainer.job.search import SearchSettings
from trainer.job.trials import TrialEnd, read_end
from trainer.machines.host_memory import source_gib


@dataclass(frozen=True, kw_only=True)
class Survey:
    """The pieces to train, and the data summary that the `started` event carries."""

    pieces: tuple[Piece, ...]
    data: dict[str, Any]

    @property
    def models(self) -> tuple[Piece, ...]:
        """Return the pieces without the trials of their searches."""
        return tuple(piece for piece in self.pieces if not piece.trial)


def survey(job: Job, plan: DataPlan) -> Survey:
    """Return the pieces of a planned job."""
    symbols = job.data.chosen((*plan.symbols, *plan.refused))
    series = [_series(symbol, job, plan) for symbol in symbols]
    return Survey(pieces=pieces_of(job, series, timeframe=plan.timeframe), data=plan.summary())


MOST_FINISHED_BYTES = 64 << 20


def read_finished(
    path: Path | None, pieces: Sequence[Piece], search: SearchSettings
) -> dict[str, TrialEnd | None]:
    """Return the models of the pieces that a file names as finished before, with the ends of trials: a JSON
    list of titles, and of ends (`TrialEnd.to_dict`) with their titles as `piece`.

    Raises UsageError for an unreadable or invalid file, and for a title of no piece.
    """
    if path is None:
        return {}
    name, known = "the list of finished pieces", {piece.title: piece for piece in pieces}
    try:
        value = json.loads(read_plain(path, most_bytes=MOST_FINISHED_BYTES))
        check_values(value, name)
        read = dict(_finished(item, search) for item in Value(value, name).items())
        if lacking := [title for title, end in read.items() if title in known and _lacks(known[title], end)]:
            raise Unsound(f"{lacking[0][:80]!r} has another end than a trial has, or none")
    except (OSError, ValueError, RecursionError) as error:
        why = str(getattr(error, "strerror", None) or error)
        do = "Leave --finished out."
        raise UsageError(f"cannot read finished pieces from {path}", why=why, do=do) from error
    if unknown := [title for title in read if title not in known]:
        why = f"{unknown[0][:80]!r} is no piece of this job"
        raise UsageError(f"finished pieces in {path}", why=why, do="Give those of the same job and data.")
    return {known[title].name: end for title, end in read.items()}


def _finished(item: Value, search: SearchSettings) -> tuple[str, TrialEnd | None]:
    if not isinstance(item.value, dict):
        return item.text(most=MOST_TEXT), None
    fields = item.fields()
    return fields.text("piece", most=MOST_TEXT), read_end(fields, search)


def _lacks(piece: Piece, end: TrialEnd | None) -> bool:
    return piece.trial != (end.trial if end else 0)


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
        memory_gib=source_gib(bars=entry.bars, rows=entry.rows, folds=len(entry.folds), job=job),
        once_gib=source_gib(bars=0, rows=0, folds=0),
        refit=sum(entry.folds[-1].bars.values()),
    )


def _visits(fold: FoldPlan, job: Job) -> int:
    """Return the cost of an epoch, in training windows. Evaluating a window costs about a quarter of training
    on it.
    """
    return fold.bars["train"] + (fold.bars["validation"] + fold.bars["test"] // job.train.epochs) // 4
