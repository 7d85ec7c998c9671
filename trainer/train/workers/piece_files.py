"""Files of pieces during training: the checkpoint to resume from, new checkpoints, and the model. One per
worker or rank; the supervisor deletes the checkpoints of a piece that has ended.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trainer.base.errors import DataError
from trainer.base.strict_json import Unsound
from trainer.cluster.studies import trial_done
from trainer.job.job import Job
from trainer.job.pieces.piece import Piece
from trainer.job.search import job_of
from trainer.job.trials import TrialEnd
from trainer.train.checkpoint import (
    Checkpoint,
    CheckpointWriter,
    Store,
    has_any,
    newest,
    newest_folder,
    why_none_continues,
    write,
)
from trainer.train.checkpoint_files import Made
from trainer.train.evaluate.scores import Outputs
from trainer.train.hardware import Hardware, hardware_of
from trainer.train.inputs.source import made_of
from trainer.train.loop import Report
from trainer.train.packs.pack import ModelState
from trainer.train.piece import Opened, ended, outputs_of_trained, scored, write_model
from trainer.train.precision import precision_of
from trainer.train.predict.readers import Evaluate, outputs_of
from trainer.train.run import Run, steps_told
from trainer.train.stages import Stages, stages_of
from trainer.train.workers.assignment import WorkerSettings


class PieceFiles:
    """Files of the pieces that this process trains, in the folder of the models."""

    def __init__(
        self, settings: WorkerSettings, device: str, report: Report, *, store: Store = write
    ) -> None:
        """`store` writes a checkpoint: see `CheckpointWriter`."""
        self._settings, self._report = settings, report
        self._folder = settings.checkpoints
        self._hardware = hardware_of(device, precision_of(settings.job, torch.device(device)))
        self._writer = CheckpointWriter(self._folder, report, choice=settings.choice, store=store)

    def newest(self, piece: Piece) -> tuple[Checkpoint | None, Stages]:
        """Return a piece's newest checkpoint of the same job, data and code, and the stages before it."""
        made = self._made(piece)
        checkpoint = newest(self._folder, piece.name, made)
        try:
            return checkpoint, stages_of(piece, checkpoint.earlier if checkpoint else None)
        except (Unsound, DataError) as error:
            reason = f"what earlier stages left is damaged: {error}"
            self._report({"event": "begun_anew", **piece.identity, "reason": reason})
            return None, stages_of(piece)

    def newest_folder(self, piece: Piece) -> Path | None:
        """Return the folder of what `newest` returns."""
        return newest_folder(self._folder, piece.name, self._made(piece))

    def folder_of(self, piece: Piece) -> Path:
        """Return the folder of a piece's checkpoints."""
        return self._folder / piece.name

    def resume(self, opened: Opened, checkpoint: Checkpoint | None) -> None:
        """Resume a run from its newest checkpoint, if there is one; report why none continues if there are
        others.
        """
        piece, made = opened.piece, self._made(opened.piece)
        if checkpoint is not None:
            checkpoint.put_into(opened.run)
            run = opened.run
            place = {"epoch": run.epochs_before + run.epoch + 1, "visited": run.position}
            place["step"] = steps_told(run, self._job_of(piece))
            self._report(
                {"event": "resumed", **piece.identity, **place, "unit": self._settings.job.model.reads}
            )
        elif has_any(self._folder, piece.name):
            reason = why_none_continues(self._folder, piece.name, made) or "its checkpoints are damaged"
            self._report({"event": "begun_anew", **piece.identity, "reason": reason})

    def checkpoint(self, opened: Opened, run: Run, state: ModelState, *, snapshot_seconds: float) -> None:
        """Queue a checkpoint of the piece. `run` and `state` are copies that nothing else changes."""
        self._writer.submit(run, state, self._made(opened.piece), snapshot_seconds=snapshot_seconds)

    def flush(self) -> None:
        """Wait until every checkpoint is on disk."""
        self._writer.flush()

    def stopped(self, opened: Opened) -> None:
        """Report a run that a notice stopped, once its last checkpoint is on disk."""
        self.flush()
        run = opened.run
        place = {
            "epoch": run.epochs_before + run.epoch + 1,
            "step": steps_told(run, self._job_of(opened.piece)),
        }
        self._report({"event": "model_stopped", **opened.piece.identity, **place})

    def ended(self, opened: Opened) -> Opened:
        """Return a piece whose run is over, with that stage finished. Raises TrainingFailed."""
        self.flush()
        return ended(opened, self._settings.job)

    def evaluated(
        self, opened: Opened, model: nn.Module, evaluate: Evaluate = outputs_of, *, aside: bool = False
    ) -> Outputs:
        """Return a trained model's outputs, from which it is scored, once its first fits have ended."""
        self._report({"event": "scoring", **opened.piece.identity, **({"aside": True} if aside else {})})
        return outputs_of_trained(opened, model, self._settings.job, evaluate)

    def scored(self, opened: Opened, outputs: Outputs) -> Opened:
        """Return the piece with the card of its first fits. Raises TrainerError."""
        known: Any = {"hardware": self.hardware(opened.piece), "choice": self._settings.choice}
        return scored(opened, outputs, self._settings.job, **known)

    def hardware(self, piece: Piece) -> Hardware:
        """Return the hardware of this process, with the number format in which a piece trains here."""
        precision = precision_of(self._job_of(piece), torch.device(self._hardware.device))
        return replace(self._hardware, precision=precision)

    def finish(self, opened: Opened) -> dict[str, Any]:
        """Write a model whose stages are over; return its `model_done` event."""
        return write_model(opened, out=self._settings.out)

    def tried(self, opened: Opened) -> dict[str, Any]:
        """Return the `trial_done` event of a trial whose run is over, which leaves no model."""
        run, piece = opened.run, opened.piece
        how = "pruned" if run.dropped else "done"
        end = TrialEnd(trial=piece.trial, values=piece.values, end=how, score=run.best_loss, epochs=run.epoch)
        asked = {"epochs_asked": run.epochs_asked, "fingerprint": self._made(piece).fingerprint}
        return trial_done(piece, end, **asked)

    def _job_of(self, piece: Piece) -> Job:
        return job_of(self._settings.job, piece.values)

    def _made(self, piece: Piece) -> Made:
        made = made_of(piece, self._settings.job, self._settings.data)
        return replace(made, precision=self.hardware(piece).precision)
