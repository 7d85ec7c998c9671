"""Pieces for tests that need one and no plan."""

from __future__ import annotations

from typing import Any

from trainer.job.job import Job
from trainer.job.pieces import pieces_of
from trainer.job.pieces.piece import Piece, SeriesWork


def named(symbol: str, *, fold: int = 1, seed: int = 0, title: str = "") -> dict[str, Any]:
    """Return the fields by which results and receipts name a piece."""
    return {"piece": title or symbol, "kind": "symbol", "series": [symbol], "fold": fold, "seed": seed}


def piece(symbol: str = "A", *, estimate: int = 1, seed: int = 0, **fields: Any) -> Piece:
    """Return a piece by hand. Its seed is part of its name."""
    names = {"name": f"lstm-direction_{symbol}_1m_f1_s{seed}", "title": symbol, "kind": "symbol"}
    return Piece(
        **{**names, "series": (symbol,), "source": symbol, "estimate": estimate, "seed": seed, **fields}
    )


def piece_of(job: Job, *symbols: str, fold: int = 1, seed: int | None = None, timeframe: str = "1m") -> Piece:
    """Return the piece that the job makes of these symbols."""
    nothing = (0,) * job.data.folds
    series = [
        SeriesWork(symbol=symbol, bars=0, windows=nothing, visits=nothing)
        for symbol in symbols or ("SIG-USD",)
    ]
    made = pieces_of(job, series, timeframe=timeframe)
    (found,) = [
        one for one in made if (one.fold, one.seed) == (fold, job.train.seed if seed is None else seed)
    ]
    return found
