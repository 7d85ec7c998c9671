"""The two ends of one piece's training: candles read and prepared before, scores, model file and card after.

Runs inside a worker; `loop.py` is the training itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import torch

import trainer
from trainer.artifacts.card import Card, CardSeries, read_card
from trainer.artifacts.weights import save
from trainer.code_files import training_sha256
from trainer.data.feature_names import FEATURES_VERSION
from trainer.errors import DataError, TrainingFailed
from trainer.job import Job
from trainer.pieces.piece import Piece
from trainer.plan.document import SymbolPlan
from trainer.targets import labels_of
from trainer.train.loop import Run
from trainer.train.packs.pack import Member, architecture_of, loss_for
from trainer.train.precision import matmul_dtype
from trainer.train.readers import INPUT_LIMIT
from trainer.train.scores import Scores, SeriesScores, reader_for, score_series, together
from trainer.train.series import PieceData
from trainer.train.source import JobData, Source, mark_of, read_source


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A piece whose data lies on the device, ready to train."""

    piece: Piece
    run: Run
    source: Source

    @property
    def data(self) -> PieceData:
        """Return the data of the piece's fold."""
        return self.source.folds[self.piece.fold]


def source_of(piece: Piece, job: Job, data: JobData) -> Source:
    """Read and prepare what all pieces of the piece's source share, on the CPU.

    Raises DataError when its bars can't be trained on.
    """
    return read_source(piece, job, data, code_sha256=code_sha256(job))


def open_piece(piece: Piece, job: Job, source: Source) -> Opened:
    """Make a piece ready to train on its fold of a source."""
    data = source.folds[piece.fold]
    run = run_of(data, job, model=piece.name, title=piece.title, seed=piece.seed, draws=piece.draws)
    return Opened(piece=piece, run=run, source=source)


def run_of(data: PieceData, job: Job, *, model: str, seed: int, title: str = "", draws: str = "") -> Run:
    """Return the training of a model by this name on a piece's data. `seed` and `draws` as in `pack.Member`."""
    member = Member(
        name=model,
        rows_TF=data.rows_TF,
        labels_TK=data.train_labels_TK,
        mean_F=data.mean_F,
        std_F=data.std_F,
        seed=seed,
        draws=draws,
    )
    parts = [(one.bars("validation"), reader_for(one, job)) for one in data.series]
    scaled = [labels_of(one.target).scale(one.target, one.labels("validation"), one.fitted) for one in data.series]
    loss, scaled_NK = loss_for(job), torch.from_numpy(np.concatenate(scaled))

    def validate(network: torch.nn.Module) -> float:
        """Return the mean loss over all validation bars, float64."""
        outputs_NO = np.concatenate([reader.outputs(network, bars) for bars, reader in parts])
        return float(loss(torch.from_numpy(outputs_NO), scaled_NK).mean())

    return Run(member=member, title=title or model, reads=data.reads, validate=validate, learning_rate=job.train.learning_rate)


def kept(piece: Piece, job: Job, data: JobData, *, out: Path) -> dict[str, Any] | None:
    """Return the `model_done` event of a model that an earlier run of the same job, data and code left in `out`; else None.

    Asks the plan and no bars. Raises the DataError with which planning refused the symbol.
    """
    mark = mark_of(piece, job, data, code_sha256=code_sha256(job))
    file = out / f"{piece.name}.safetensors"
    try:
        card = read_card(file)
    except DataError:  # none there, or a spoilt one
        return None
    if card.data.get("fingerprint") != mark:
        return None
    return _done(piece, job, file.name, hashlib.sha256(file.read_bytes()).hexdigest(), card.metrics)


def close_piece(
    opened: Opened, model: torch.nn.Module, job: Job, *, out: Path, device: str, choice: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Score a trained model once and write it to `out`; return its `model_done` event. The card keeps `choice` as it is.

    Raises TrainingFailed when training did not come to a finite loss.
    """
    piece, run = opened.piece, opened.run
    if run.failure:
        raise TrainingFailed(f"{piece.name} did not train", why=run.failure, do="Lower learning_rate or clip_norm.")
    data = opened.data
    baselines = opened.source.baselines(piece.fold)
    scored = [score_series(model, one, job, known) for one, known in zip(data.series, baselines, strict=True)]
    scores = together(data.series, scored)
    file = f"{piece.name}.safetensors"
    sha256 = save(out / file, run.best_weights, _card(opened, job, scored, scores, device, choice or {}))
    return _done(piece, job, file, sha256, scores)


def _done(piece: Piece, job: Job, file: str, sha256: str, scores: dict[str, dict[str, Any]]) -> dict[str, Any]:
    made = {"family": job.model.name, "target": job.target.name, "file": file, "sha256": sha256, "metrics": scores}
    return {"event": "model_done", **piece.description, **made}


def _card(
    opened: Opened,
    job: Job,
    scored: Sequence[SeriesScores],
    scores: Scores,
    device: str,
    choice: Mapping[str, Any],
) -> Card:
    piece, run, data, source = opened.piece, opened.run, opened.data, opened.source
    settings = (
        *("epochs", "batch", "learning_rate", "warmup_steps", "schedule", "weight_decay", "clip_norm", "ema", "patience"),
        *(
            "strategy",
            "pack",
            "micro_batch",
            "activation_checkpointing",
        ),  # how fast, not what: the tuner's choice, 0 the default
    )
    return Card(
        model=piece.name,
        piece=piece.title,
        kind=piece.kind,
        family=job.model.name,
        target=job.target.name,
        target_settings=data.series[0].target.card_keys(),
        own_files={table: home.card_entry() for table, home in job.own_files.items()},
        series=_series(data, scored, source.entries),
        timeframe=data.series[0].candles.timeframe,
        architecture=architecture_of(job, features=len(job.data.inputs)),
        features=list(job.data.inputs),
        columns=list(job.data.columns),
        features_version=FEATURES_VERSION,
        lookback=job.model.bars_seen,
        metrics=scores,
        training={
            **{name: getattr(job.train, name) for name in settings},
            "epochs_run": run.epoch,
            "best_epoch": run.best_epoch,
            "final_learning_rate": run.learning_rate,
            "lowered": run.lowered,
            "history": run.history,
            "device": device,
            "choice": dict(choice),
            "precision": str(matmul_dtype(job, torch.device(device))).removeprefix("torch."),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
        },
        data={
            "files": list(source.files),
            "bars": sum(entry.bars for entry in source.entries),
            "first": min(entry.first for entry in source.entries),
            "last": max(entry.last for entry in source.entries),
            "holes": sum(entry.num_holes for entry in source.entries),
            "ties": sum(one.ties for one in data.series),
            "synthetic": source.synthetic,
            "fingerprint": source.mark,
        },
        code_sha256=code_sha256(job),
        seed=piece.seed,
        fold=piece.fold,
        folds=job.data.folds,
        created_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        mayfly=trainer.__version__,
    )


def _series(data: PieceData, scored: Sequence[SeriesScores], entries: Sequence[SymbolPlan]) -> list[CardSeries]:
    """Return what belongs to each series alone. Of one series, the scores are the card's."""
    return [
        CardSeries(
            symbol=one.symbol,
            calendar=one.calendar,
            horizon=one.horizon_bars,
            # float32 values written as float64 text: reading them back gives the same float32. The limit is in deviations.
            scaler={"mean": mean_F.tolist(), "std": std_F.tolist(), "limit": INPUT_LIMIT},
            splits=one.splits(),
            fitted=its.fitted,
            data={"bars": entry.bars, "first": entry.first, "last": entry.last, "holes": entry.num_holes, "ties": one.ties},
            metrics={span: its.scores[span] for span in ("validation", "test")} if len(scored) > 1 else {},
        )
        for one, (mean_F, std_F), its, entry in zip(data.series, data.scalers, scored, entries, strict=True)
    ]


def code_sha256(job: Job) -> str:
    """Return the hash of the code that makes the job's models."""
    return training_sha256((type(job.model).__module__, type(job.target).__module__))
