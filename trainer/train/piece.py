"""The work before and after one piece's training: set up its run; score the model and write its file and
card.

Runs inside a worker; `loop.py` trains.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from trainer.base.errors import DataError, TrainingFailed
from trainer.job.job import Job
from trainer.job.pieces.piece import Piece
from trainer.store.card import Card, read_card
from trainer.store.weights import save
from trainer.train.checkpoint import why_none_continues
from trainer.train.cpu import on_one_thread
from trainer.train.evaluate.cards import card_of_training
from trainer.train.evaluate.epoch_scores import validation_of
from trainer.train.evaluate.evaluation import Baselines
from trainer.train.evaluate.panel_scores import score_panel
from trainer.train.evaluate.scores import Outputs, joint_scores, outputs_by_span, score_series
from trainer.train.inputs.series import PieceData
from trainer.train.inputs.source import JobData, Source, made_of
from trainer.train.loop import Run
from trainer.train.packs.pack import Member
from trainer.train.predict.readers import Evaluate, outputs_of
from trainer.train.schedule import base_rate


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A piece whose data is on the device, ready to train."""

    piece: Piece
    run: Run
    source: Source

    @property
    def data(self) -> PieceData:
        """Return the data of the piece's fold."""
        return self.source.folds[self.piece.fold]

    def trained(self) -> Opened:
        """Return what scoring needs of a trained model besides its baselines, on the CPU, to be sent."""
        return replace(self, run=self.run.trained(), source=self.source.bare(self.piece.fold))

    def with_baselines(self, baselines: list[Baselines]) -> Opened:
        """Return the piece with known baselines of its fold."""
        return replace(self, source=self.source.with_baselines(self.piece.fold, baselines))


def open_piece(piece: Piece, job: Job, source: Source, evaluate: Evaluate | None = None) -> Opened:
    """Return a piece ready to train on its fold of a source; `evaluate` runs its network over the validation
    bars, where ranks share them.
    """
    data = source.folds[piece.fold]
    run = run_of(
        data, job, model=piece.name, title=piece.title, seed=piece.seed, draws=piece.draws, evaluate=evaluate
    )
    return Opened(piece=piece, run=run, source=source)


def run_of(
    data: PieceData,
    job: Job,
    *,
    model: str,
    seed: int,
    title: str = "",
    draws: str = "",
    evaluate: Evaluate | None = None,
) -> Run:
    """Return a new run that trains the model of this name on a piece's data. `seed` and `draws` as in
    `pack.Member`.
    """
    member = Member(
        name=model,
        rows_TF=data.rows_TF,
        labels_TK=data.train_labels_TK,
        mean_F=data.mean_F,
        std_F=data.std_F,
        context_RC=data.context_RC,
        series=tuple(one.symbol for one in data.series),
        seed=seed,
        draws=draws,
    )
    return Run(
        member=member,
        title=title or model,
        reads=data.reads,
        validation=validation_of(data, job, evaluate),
        learning_rate=base_rate(job),
        most_reads=job.train.reads_of_epoch(len(data.reads)),
    )


def kept(piece: Piece, job: Job, data: JobData, *, out: Path) -> dict[str, Any] | None:
    """Return the `model_done` event of a model that an earlier run of the same job, data and code left in
    `out`, or None.

    Reads no bars, only the plan. Raises the DataError with which planning refused the symbol.
    """
    mark = made_of(piece, job, data).fingerprint
    file = out / f"{piece.name}.safetensors"
    try:
        card = read_card(file)
    except DataError:  # missing or damaged
        return None
    if card.data.get("fingerprint") != mark:
        return None
    return done_event(piece, card, file.name, hashlib.sha256(file.read_bytes()).hexdigest())


def check_given(pieces: Sequence[Piece], job: Job, data: JobData, *, folder: Path, precision: str) -> None:
    """Raise TrainingFailed if this machine can't continue the checkpoints that it was given for a piece."""
    refused = {}
    for piece in pieces:
        with suppress(DataError):  # planning refused a symbol: reported when the piece starts
            made = made_of(piece, job, data, precision=precision)
            if reason := why_none_continues(folder, piece.name, made):
                refused[piece.title] = reason
    if refused:
        first, *others = refused
        more = f" and {len(others)} others" if others else ""
        do = "Launch without --resume to train from the start, or on a machine as the one before."
        what = f"the checkpoints of {first}{more} can't be continued here"
        raise TrainingFailed(what, why=refused[first], do=do)


def outputs_of_trained(
    opened: Opened, model: torch.nn.Module, job: Job, evaluate: Evaluate = outputs_of
) -> Outputs:
    """Return a trained model's outputs, from which it is scored. Raises TrainingFailed if its run failed.

    On one thread, as in a prediction: a convolution's sums over several differ in the last digit.
    """
    piece, run = opened.piece, opened.run
    if run.failure:
        do = "Lower train.learning_rate or train.clip_norm."
        raise TrainingFailed(f"{piece.name} did not train", why=run.failure, do=do)
    with on_one_thread():
        return outputs_by_span(model, opened.data, job, evaluate, validation_NO=run.best_outputs)


def close_piece(
    opened: Opened,
    outputs: Outputs,
    job: Job,
    *,
    out: Path,
    device: str,
    precision: str,
    choice: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Score a trained model by its `outputs` and write it to `out`; return its `model_done` event.

    Device, precision and `choice` are stored in the card; nothing here runs on the device.
    """
    piece, run, data = opened.piece, opened.run, opened.data
    baselines = opened.source.baselines(piece.fold)
    if data.panel is not None:
        scored, joint = score_panel(outputs, data, baselines)
    else:
        scored = [
            score_series({span: of_series[number] for span, of_series in outputs.items()}, one, known)
            for number, (one, known) in enumerate(zip(data.series, baselines, strict=True))
        ]
        joint = joint_scores(data.series, scored)
    file = f"{piece.name}.safetensors"
    card = card_of_training(
        piece,
        job,
        run=run,
        data=data,
        origin=opened.source.origin,
        scored=scored,
        joint=joint,
        device=device,
        precision=precision,
        choice=choice or {},
    )
    return done_event(piece, card, file, save(out / file, run.best_weights, card))


def done_event(piece: Piece, card: Card, file: str, sha256: str) -> dict[str, Any]:
    """Return the `model_done` event of a model file."""
    made = {"family": card.family, "target": card.target, "file": file, "sha256": sha256}
    return {"event": "model_done", **piece.description, **made, "metrics": card.metrics}
