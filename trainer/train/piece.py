"""The work before and after one piece's training: set up its run; score the model and write its file and
card.

Runs inside a worker; `loop.py` trains.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from trainer.base.errors import DataError, TrainingFailed
from trainer.data.read.candles import Candles
from trainer.job.job import Job
from trainer.job.pieces.piece import Piece
from trainer.job.search import job_of
from trainer.job.trials import told_of
from trainer.store.card import Card, read_card
from trainer.store.weights import HELD_OUT, save
from trainer.train.checkpoint import why_none_continues
from trainer.train.cpu import on_one_thread
from trainer.train.evaluate.cards import card_of_refit, card_of_training
from trainer.train.evaluate.epoch_scores import validation_of
from trainer.train.evaluate.evaluation import Baselines
from trainer.train.evaluate.panel_scores import score_panel
from trainer.train.evaluate.scores import Outputs, joint_scores, outputs_by_span, score_series
from trainer.train.hardware import Hardware
from trainer.train.inputs.series import PieceData
from trainer.train.inputs.source import JobData, Source, made_of
from trainer.train.packs.pack import Member
from trainer.train.packs.tensors import put_tensors
from trainer.train.predict.averaged import Averaged, averaged_tensors
from trainer.train.predict.readers import Evaluate, outputs_of
from trainer.train.run import Run
from trainer.train.schedule import base_rate
from trainer.train.seeds import Episodes
from trainer.train.stages import Stages, stages_of


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A piece whose data is on the device, ready to train."""

    piece: Piece
    run: Run
    source: Source
    stages: Stages  # that are finished; `run` is the next one

    @property
    def data(self) -> PieceData:
        """Return the data of the piece's fold."""
        return self.source.folds[self.piece.fold]

    def trained(self) -> Opened:
        """Return a piece whose stages are over as it is sent to a helper, which scores and writes it: on the
        CPU, without rows and baselines.
        """
        source = self.source.bare(self.piece.fold)
        return replace(self, run=self.run.without_data(), source=source, stages=self.stages.on_cpu())

    def with_baselines(self, baselines: list[Baselines]) -> Opened:
        """Return the piece with known baselines of its fold."""
        return replace(self, source=self.source.with_baselines(self.piece.fold, baselines))


def open_piece(
    piece: Piece,
    job: Job,
    source: Source,
    evaluate: Evaluate | None = None,
    *,
    stages: Stages | None = None,
) -> Opened:
    """Return a piece ready to train its next stage on its fold of a source; `evaluate` runs its network over
    the validation bars, where ranks share them.
    """
    stages, job = stages or stages_of(piece), job_of(job, piece.values)
    data, seed = source.folds[piece.fold], piece.seed + stages.member
    run = run_of(
        data, job, model=piece.name, title=piece.title, seed=seed, draws=piece.draws, evaluate=evaluate
    )
    stages.prepare(run, job)
    return Opened(piece=piece, run=run, source=source, stages=stages)


def ended(opened: Opened, job: Job) -> Opened:
    """Return a piece whose run is over, with that stage finished. Raises TrainingFailed if the run failed."""
    piece, run = opened.piece, opened.run
    if run.failure:
        what, do = "did not train", "Lower train.learning_rate or train.clip_norm."
        if opened.stages.on_all_bars:
            what = "did not train again on all bars"
        raise TrainingFailed(f"{piece.name} {what}", why=run.failure, do=do)
    return replace(opened, stages=opened.stages.with_run(run, job_of(job, piece.values)))


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
        candles=candles_of(data) if job.target.has_environment else None,
        context_RC=data.context_RC,
        series=tuple(one.symbol for one in data.series),
        seed=seed,
        draws=draws,
        job=job,
    )
    return Run(
        member=member,
        title=title or model,
        reads=data.reads,
        validation=validation_of(data, job, evaluate),
        learning_rate=base_rate(job),
        most_reads=job.reads_of_epoch(len(data.reads)),
        episodes=episodes_of(job),
        epochs_asked=job.train.epochs,
    )


def candles_of(data: PieceData) -> Candles:
    """Return the candles of training, in which an environment of the user's own may run."""
    one = data.series[0]
    bars = one.bars("train")
    return one.candles.rows(int(bars[0]), int(bars[-1]) + 1)


def episodes_of(job: Job) -> Episodes | None:
    """Return how an agent of the job visits windows; None if nothing acts."""
    if not job.target.acts:
        return None
    lanes = job.agent.lanes
    return Episodes(lanes=lanes, bars=job.reads_of_step // lanes, length=job.agent.episode)


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
    if card.data.get("fingerprint") != mark or not _is_as_long(card, job):
        return None
    if piece.study and card.training.get("search") != told_of(piece.trials):  # of another search
        return None
    return done_event(piece, card, file.name, hashlib.sha256(file.read_bytes()).hexdigest())


def _is_as_long(card: Card, job: Job) -> bool:
    """Return whether a finished model has trained as long as the job's would: for as many epochs at most, or
    fewer where it stopped early in both.
    """
    asked, trained = card.training.get("epochs"), card.training.get("epochs_run")
    if asked == job.train.epochs:
        return True
    return isinstance(asked, int) and isinstance(trained, int) and trained < min(asked, job.train.epochs)


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
    """Return a trained model's outputs, from which it is scored, once its first fits have ended. `model` is
    the network of the last one.

    On one thread, as in a prediction: a convolution's sums over several differ in the last digit.
    """
    fits = opened.stages.first_fits
    known, job = fits[0].outputs_NO if len(fits) == 1 else None, job_of(job, opened.piece.values)
    if len(fits) > 1:
        members = [copy.deepcopy(model) for _ in fits]
        for member, fit in zip(members, fits, strict=True):
            put_tensors(member, fit.weights)
        model = Averaged(members, opened.data.series[0].target).eval()
    with on_one_thread():
        return outputs_by_span(model, opened.data, job, evaluate, validation_NO=known)


def close_piece(
    opened: Opened,
    outputs: Outputs,
    job: Job,
    *,
    out: Path,
    hardware: Hardware,
    choice: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Score a piece whose first fits have ended by its `outputs`, and write it to `out`; return its
    `model_done` event. Hardware and `choice` are stored in its card; nothing runs on the device.
    """
    with_card = scored(opened, outputs, job, hardware=hardware, choice=choice)
    return write_model(with_card, out=out)


def scored(
    opened: Opened,
    outputs: Outputs,
    job: Job,
    *,
    hardware: Hardware,
    choice: Mapping[str, Any] | None = None,
) -> Opened:
    """Return a piece whose first fits have ended, with their card: their scores by `outputs`. `choice` is
    stored in it.
    """
    data, job = opened.data, job_of(job, opened.piece.values)
    baselines = opened.source.baselines(opened.piece.fold)
    if data.panel is not None:
        by_series, joint = score_panel(outputs, data, baselines)
    else:
        by_series = [
            score_series({span: of_series[number] for span, of_series in outputs.items()}, one, known)
            for number, (one, known) in enumerate(zip(data.series, baselines, strict=True))
        ]
        joint = joint_scores(data.series, by_series)
    card = card_of_training(
        opened.piece,
        job,
        fits=opened.stages.first_fits,
        data=data,
        origin=opened.source.origin,
        scored=by_series,
        joint=joint,
        hardware=hardware,
        choice=choice or {},
    )
    return replace(opened, stages=replace(opened.stages, card=card))


def write_model(opened: Opened, *, out: Path) -> dict[str, Any]:
    """Write a piece whose stages are over to `out`, and return its `model_done` event. A refit's file has its
    held-out twin's weights, too.
    """
    stages, card = opened.stages, opened.stages.card
    assert card is not None
    tensors = averaged_tensors([fit.weights for fit in stages.first_fits])
    if stages.refits:
        card = card_of_refit(card, stages.refits, opened.data, opened.source.origin, twin=tensors)
        twin = {f"{HELD_OUT}{name}": tensor for name, tensor in tensors.items()}
        tensors = {**averaged_tensors([fit.weights for fit in stages.refits]), **twin}
    file = f"{opened.piece.name}.safetensors"
    return done_event(opened.piece, card, file, save(out / file, tensors, card))


def done_event(piece: Piece, card: Card, file: str, sha256: str) -> dict[str, Any]:
    """Return the `model_done` event of a model file."""
    made = {"family": card.family, "target": card.target, "file": file, "sha256": sha256}
    return {"event": "model_done", **piece.description, **made, "metrics": card.metrics}
