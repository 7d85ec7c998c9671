"""What trains is a piece: a model by its name, the series that it trains on, its estimate and its memory.

Queue, checkpoints, events, card and receipt know pieces and not symbols. A kind of piece says of which jobs it makes the
pieces, and which; to add one, see docs/architecture.md. Standard library only: the control plane prices pieces.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainer.job import Job
from trainer.pieces.piece import Kind, Piece, SeriesWork
from trainer.pieces.pooled import POOLED
from trainer.pieces.symbol import SYMBOL

KINDS: dict[str, Kind] = {kind.name: kind for kind in (SYMBOL, POOLED)}  # the last one that takes a job makes its pieces


def kind_of(job: Job) -> Kind:
    """Return the kind that makes the job's pieces."""
    return next(kind for kind in reversed(KINDS.values()) if kind.takes(job))


def pieces_of(job: Job, series: Sequence[SeriesWork], *, timeframe: str) -> tuple[Piece, ...]:
    """Return the pieces of a job on these series."""
    return kind_of(job).pieces(job, series, timeframe)
