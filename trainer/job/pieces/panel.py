"""One model of a panel for each fold and seed: `[data] panel = true`. All series share one calendar.

The job's name replaces the symbol in the model's name. Pieces of a fold share a source, since rows are scaled
by fold.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainer.job.job import Job
from trainer.job.pieces.piece import Kind, Piece, SeriesWork, models_of, refuse_namesake


def _pieces(job: Job, series: Sequence[SeriesWork], timeframe: str) -> tuple[Piece, ...]:
    refuse_namesake(job, series, "a panel's model")
    made = models_of(
        job, series, kind="panel", stem=job.name, timeframe=timeframe, source=job.name, source_by_fold=True
    )
    return tuple(made)


PANEL = Kind(
    name="panel",
    takes=lambda job: job.data.panel,
    pieces=_pieces,
    each="panel of all symbols",
    one_split=True,
    all_devices=True,
)
