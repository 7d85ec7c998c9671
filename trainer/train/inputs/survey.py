"""Pieces of a job and the cost of each, from the plan of its data.

Symbols that planning refused keep their pieces: the worker that gets one reports the error.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainer.bars.document import DataPlan, FoldPlan
from trainer.base.errors import DataError, UsageError
from trainer.base.files import read_plain
from trainer.base.strict_json import MOST_TEXT, Unsound, Value, check_values, read_object
from trainer.job.job import Job
from trainer.job.pieces import pieces_of
from trainer.job.pieces.piece import Piece, SeriesWork
from trainer.job.search import SearchSettings
from trainer.job.trials import TrialEnd, read_end
from trainer.machines.host_memory import source_gib
from trainer.train.inputs.source import JobData, made_of


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
    return Survey(pieces=pieces_of(job, series, timeframe=plan.timeframe), data=plan.summary(job))


MOST_FINISHED_BYTES = 64 << 20
MOST_OBSERVED_BYTES = 64 << 20  # of the events of a trial


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
        why = f"{unknown[0][:80]!r} is not a piece of this job"
        raise UsageError(f"finished pieces in {path}", why=why, do="Give those of the same job and data.")
    return {known[title].name: end for title, end in read.items()}


def ends_observed(pieces: Iterable[Piece], job: Job, data: JobData, folder: Path) -> dict[str, TrialEnd]:
    """Return the ends of trials, by name, that an earlier training of the same bars, settings and code left
    in OUT's files of events. One that was left out then may begin now.
    """
    found = {}
    for piece in pieces:
        try:
            body = read_plain(folder / f"{piece.name}.jsonl", most_bytes=MOST_OBSERVED_BYTES)
        except OSError:
            continue
        for line in reversed(body.splitlines()):
            if b'"trial_done"' not in line:
                continue
            try:
                fields = read_object(line, most_bytes=MOST_OBSERVED_BYTES, name="the event")
                end = read_end(fields, job.search)
                made = made_of(replace(piece, values=end.values), job, data).fingerprint
            except (Unsound, DataError):
                break
            same = end.trial == piece.trial and end.values == (piece.values or end.values)
            told = (fields.values.get("epochs_asked"), fields.values.get("fingerprint"))
            if same and end.end in ("done", "pruned") and told == (job.train.epochs, made):
                found[piece.name] = end
            break
    return found


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
