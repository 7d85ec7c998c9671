"""Train a piece by a function of its own, named `package.module:function`, instead of the training loop.

    run(piece, job, data) -> RunnerResult

A worker, which may be killed and restarted, calls it and writes the result as a model with a card. Upload,
result and receipt are those of any piece. A TrainerError fails the piece; any other error ends the worker.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from trainer.base.errors import TrainingFailed
from trainer.job.job import Job
from trainer.job.pieces.piece import Piece
from trainer.store.weights import save
from trainer.train.evaluate.cards import card_of_runner
from trainer.train.inputs.source import JobData
from trainer.train.piece import done_event


@dataclass(frozen=True, kw_only=True)
class RunnerResult:
    """Result of a runner: tensors by name, and scores by span, as JSON values, for the card."""

    weights: Mapping[str, torch.Tensor]
    metrics: Mapping[str, Any] = field(default_factory=dict)


def run_piece(
    piece: Piece, job: Job, data: JobData, *, out: Path, device: str, choice: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Run a piece's runner and write its model to `out`; return its `model_done` event. Raises
    TrainingFailed.
    """
    module, _, function = piece.runner.partition(":")
    try:
        run = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        what = f"{piece.name} has no runner {piece.runner}"
        raise TrainingFailed(
            what, why=str(error), do="Name package.module:function, which the node's code has."
        ) from error
    made = run(piece, job, data)
    if not isinstance(made, RunnerResult):
        what = f"{piece.runner} gave {type(made).__name__} for {piece.name}"
        raise TrainingFailed(
            what, why="a runner returns a RunnerResult: weights and metrics", do="Return that."
        )
    card = card_of_runner(piece, job, data, metrics=made.metrics, device=device, choice=choice or {})
    file = f"{piece.name}.safetensors"
    return done_event(piece, card, file, save(out / file, made.weights, card))
