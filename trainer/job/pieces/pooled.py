"""One model of all symbols for each fold and seed: `[data] pooled = true`.

The job's name replaces the symbol in the model's name. Pieces of a fold share a source: rows are laid end to
end already scaled, each series by a scaler that is fitted on its own bars of training, which differ from fold
to fold.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainer.job.job import Job
from trainer.job.pieces.piece import Kind, Piece, SeriesWork, models_of, refuse_namesake


def _pieces(job: Job, series: Sequence[SeriesWork], timeframe: str) -> tuple[Piece, ...]:
    refuse_namesake(job, series, "a pooled model")
    made = models_of(
        job, series, kind="pooled", stem=job.name, timeframe=timeframe, source=job.name, source_by_fold=True
    )
    return tuple(made)


POOLED = Kind(
    name="pooled",
    takes=lambda job: job.data.pooled,
    pieces=_pieces,
    each="pool of all symbols",
    one_split=True,
)
