"""Kinds of pieces that are models: of a symbol each, or of all symbols, for each fold and seed of the job.

A model of all symbols has the job's name instead of a symbol's. With `[data] pooled = true` rows are laid
end to end already scaled, each series by a scaler that is fitted on its own bars of training; with `[data]
panel = true` all series share one calendar. Both scale by fold, so pieces of a fold share a source.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trainer.base.errors import DataError
from trainer.job.job import Job
from trainer.job.pieces.piece import Kind, Piece, SeriesWork, models_of


def _of_each(job: Job, series: Sequence[SeriesWork], timeframe: str) -> tuple[Piece, ...]:
    made = (models_of(job, [one], kind="symbol", stem=one.symbol, timeframe=timeframe) for one in series)
    return tuple(piece for models in made for piece in models)


def _of_all(kind: str, what: str) -> Callable[[Job, Sequence[SeriesWork], str], tuple[Piece, ...]]:
    """Return the function that makes the pieces of a kind, whose model errors call `what`."""

    def pieces(job: Job, series: Sequence[SeriesWork], timeframe: str) -> tuple[Piece, ...]:
        for one in series:
            if one.symbol.casefold() == job.name.casefold():
                why = f"{what} has the name of its job, and would be taken for the model of that symbol"
                same = f"the job and its symbol {one.symbol} have the same name"
                raise DataError(same, why=why, do="Give the job another name.")
        return tuple(
            models_of(job, series, kind=kind, stem=job.name, timeframe=timeframe, source_by_fold=True)
        )

    return pieces


SYMBOL = Kind(name="symbol", takes=lambda job: True, pieces=_of_each)
POOLED = Kind(
    name="pooled",
    takes=lambda job: job.data.pooled,
    pieces=_of_all("pooled", "a pooled model"),
    each="pool of all symbols",
    one_split=True,
)
PANEL = Kind(
    name="panel",
    takes=lambda job: job.data.panel,
    pieces=_of_all("panel", "a panel's model"),
    each="panel of all symbols",
    one_split=True,
    all_devices=True,
)
