"""Pieces: the models to train, each with its name, its series, its estimate and its memory.

Queue, checkpoints, events, card and receipt know pieces, not symbols. A kind of piece takes some jobs and
makes their pieces; to add one, see docs/architecture.md. Standard library only: the control plane prices
pieces.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trainer.base.errors import UsageError
from trainer.base.text import counted
from trainer.job.job import Job
from trainer.job.pieces.models import PANEL, POOLED, SYMBOL
from trainer.job.pieces.piece import Kind, Piece, SeriesWork
from trainer.job.pieces.script import SCRIPT

# The last kind that takes a job makes its pieces.
KINDS: dict[str, Kind] = {kind.name: kind for kind in (SYMBOL, POOLED, PANEL, SCRIPT)}


def kind_of(job: Job) -> Kind:
    """Return the kind that makes the job's pieces."""
    return next(kind for kind in reversed(KINDS.values()) if kind.takes(job))


def takes_all_devices(job: Job) -> bool:
    """Return whether all devices of a machine, if it has several, train each piece of the job together."""
    return kind_of(job).all_devices if job.train.distributed == "auto" else job.train.distributed == "always"


def check_machines(job: Job, pieces: Sequence[Piece]) -> None:
    """Raise UsageError for a search over fewer models than there are machines."""
    models, nodes = sum(not piece.trial for piece in pieces), job.machine.nodes
    if models < nodes and any(piece.trial for piece in pieces):
        why, do = "the trials of a model are compared on one machine", f"Set machine.nodes = {models}."
        raise UsageError(f"{nodes} machines for {counted(models, 'model')}", why=why, do=do)


def pieces_of(job: Job, series: Sequence[SeriesWork], *, timeframe: str) -> tuple[Piece, ...]:
    """Return the pieces of a job on these series."""
    made = kind_of(job).pieces(job, series, timeframe)
    tried = sum(piece.trial > 0 for piece in made) or len(made)
    return tuple(replace(piece, tried=tried) for piece in made)
