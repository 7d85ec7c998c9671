"""A user's script: one piece, with all devices of the machine, or one for each combination of its values.

It has no series and makes no model file. The agent runs it (node/command_run.py), not a training worker.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainer.job.job import Job
from trainer.job.pieces.piece import Kind, Piece, SeriesWork
from trainer.job.script import KIND


def _pieces(job: Job, series: Sequence[SeriesWork], timeframe: str) -> tuple[Piece, ...]:
    name = f"{KIND}_{job.name}"
    named = {title: f"{name}_{title}" for title in job.script.combinations} or {job.name: name}
    estimate = 1.0  # of itself: rates are in scripts a second
    return tuple(
        Piece(name=name, title=title, kind=KIND, series=(), source=title, estimate=estimate)
        for title, name in named.items()
    )


SCRIPT = Kind(
    name=KIND,
    takes=lambda job: bool(job.script.command),
    pieces=_pieces,
    each="script",
    command=KIND,
    untimed="this script has not run yet",
    reads_candles=False,
)
