"""A model for each symbol, fold and seed: the default kind."""

from __future__ import annotations

from collections.abc import Sequence

from trainer.job.job import Job
from trainer.job.pieces.piece import Kind, Piece, SeriesWork, models_of


def _pieces(job: Job, series: Sequence[SeriesWork], timeframe: str) -> tuple[Piece, ...]:
    return tuple(
        piece
        for one in series
        for piece in models_of(
            job, [one], kind="symbol", stem=one.symbol, timeframe=timeframe, source=one.symbol
        )
    )


SYMBOL = Kind(name="symbol", takes=lambda job: True, pieces=_pieces)
