"""Files of pieces during training: the checkpoint to resume from, new checkpoints, and the model. One per
worker or rank; the supervisor deletes the checkpoints of a piece that has ended.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from trainer.train.checkpoint import (
    CheckpointWriter,
    Store,
    has_any,
    newest,
    why_none_continues,
    write,
)
from trainer.train.checkpoint_files import Made
from trainer.train.evaluate.scores import Outputs
from trainer.train.loop import Report, Run, steps_of
from trainer.train.packs.pack import ModelState
from trainer.train.piece import Opened, close_piece, outputs_of_trained
from trainer.train.precision import precision_of
from trainer.train.predict.readers import Evaluate, outputs_of
from trainer.train.workers.assignment import WorkerSettings


class PieceFiles:
    """Files of the pieces that this process trains, in the folder of the models."""

    def __init__(
        self, settings: WorkerSettings, device: str, report: Report, *, store: Store = write
    ) -> None:
        """`store` writes a checkpoint: see `CheckpointWriter`."""
        self._settings, self._device, self._report = settings, device, report
        self._folder = settings.checkpoints
        self.precision = precision_of(settings.job, torch.device(device))
        self._writer = CheckpointWriter(self._folder, report, choice=settings.choice, store=store)

    def resume(self, opened: Opened) -> None:
        """Resume a run from its newest checkpoint of the same job, data and code, if there is one; report why
        none continues if there are others.
        """
        piece, made = opened.piece, self._made(opened)
        checkpoint = newest(self._folder, piece.name, made)
        if checkpoint is not None:
            checkpoint.put_into(opened.run)
            place = {"epoch": opened.run.epoch + 1, "visited": opened.run.position}
            place["step"] = steps_of(opened.run, self._settings.job)
            self._report(
                {"event": "resumed", **piece.identity, **place, "unit": self._settings.job.model.reads}
            )
        elif has_any(self._folder, piece.name):
            reason = why_none_continues(self._folder, piece.name, made) or "its checkpoints are damaged"
            self._report({"event": "begun_anew", **piece.identity, "reason": reason})

    def checkpoint(self, opened: Opened, run: Run, state: ModelState, *, snapshot_seconds: float) -> None:
        """Queue a checkpoint of the piece. `run` and `state` are copies that nothing else changes."""
        self._writer.submit(run, state, self._made(opened), snapshot_seconds=snapshot_seconds)

    def flush(self) -> None:
        """Wait until every checkpoint is on disk."""
        self._writer.flush()

    def stopped(self, opened: Opened) -> None:
        """Report a run that a notice stopped, once its last checkpoint is on disk."""
        self.flush()
        place = {"epoch": opened.run.epoch + 1, "step": steps_of(opened.run, self._settings.job)}
        self._report({"event": "model_stopped", **opened.piece.identity, **place})

    def evaluated(self, opened: Opened, model: nn.Module, evaluate: Evaluate = outputs_of) -> Outputs:
        """Return a trained model's outputs, from which it is scored. Raises TrainingFailed if the run
        failed.
        """
        self.flush()
        self._report({"event": "scoring", **opened.piece.identity})
        return outputs_of_trained(opened, model, self._settings.job, evaluate)

    def finish(self, opened: Opened, outputs: Outputs) -> dict[str, Any]:
        """Score a trained model and write it; return its `model_done` event. Raises TrainerError."""
        job, out, choice = self._settings.job, self._settings.out, self._settings.choice
        known = {"device": self._device, "precision": self.precision}
        return close_piece(opened, outputs, job, out=out, choice=choice, **known)

    def _made(self, opened: Opened) -> Made:
        return replace(opened.source.origin.made, precision=self.precision)
