"""Build the cards of models from a piece's data, settings, training and scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

import torch

import trainer
from trainer.bars.document import SymbolPlan
from trainer.data.feature_names import FEATURES_VERSION
from trainer.job.job import Job
from trainer.job.pieces.piece import Piece
from trainer.store.card import Card, CardPanel, CardSeries
from trainer.train.evaluate.scores import Scored, SeriesScores
from trainer.train.inputs.encoder import parent_of
from trainer.train.inputs.series import PieceData
from trainer.train.inputs.source import Origin, code_sha256
from trainer.train.loop import Run
from trainer.train.packs.pack import architecture_of
from trainer.train.precision import DTYPES
from trainer.train.predict.readers import INPUT_LIMIT

# Training settings stored in a card. Those of [expert] change only the speed: the trial's choice, or 0 for
# the default.
SETTINGS = (
    "epochs",
    "batch",
    "learning_rate",
    "warmup_steps",
    "warmup_epochs",
    "steps_per_epoch",
    "schedule",
    "weight_decay",
    "clip_norm",
    "ema",
    "patience",
)
EXPERT_SETTINGS = ("strategy", "pack", "micro_batch", "activation_checkpointing")


def card_of_training(
    piece: Piece,
    job: Job,
    *,
    run: Run,
    data: PieceData,
    origin: Origin,
    scored: Sequence[SeriesScores],
    joint: Scored,
    device: str,
    precision: str,
    choice: Mapping[str, Any],
) -> Card:
    """Return the card of a piece that the training loop trained. `precision` is `precision_of`'s."""
    return Card(
        model=piece.name,
        piece=piece.title,
        kind=piece.kind,
        family=job.model.name,
        target=job.target.name,
        target_settings=data.series[0].target.card_keys(),
        own_files={table: home.card_entry() for table, home in job.own_files.items()},
        parent=parent_of(job),
        timeframe=origin.timeframe,
        features=list(job.data.inputs),
        columns=list(job.data.columns),
        features_version=FEATURES_VERSION,
        series=_series(data, scored, origin.entries),
        architecture=architecture_of(job, features=len(job.data.inputs)),
        lookback=job.model.bars_seen,
        metrics=joint.scores,
        losses=joint.losses,
        reliability=joint.reliability,
        trades=joint.trades,
        training={
            **{name: getattr(job.train, name) for name in SETTINGS},
            **{name: getattr(job.expert, name) for name in EXPERT_SETTINGS},
            "epochs_run": run.epoch,
            "best_epoch": run.best_epoch,
            "final_learning_rate": run.learning_rate,
            "lowered": run.lowered,
            "history": run.history,
            "device": device,
            "choice": dict(choice),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "precision": str(DTYPES[precision]).removeprefix("torch."),
        },
        data={**_data(origin), "ties": sum(one.ties for one in data.series)},
        panel=_panel(data, scored),
        code_sha256=code_sha256(job),
        seed=piece.seed,
        fold=piece.fold,
        folds=job.data.folds,
        created_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        mayfly=trainer.__version__,
    )


def _data(origin: Origin) -> dict[str, Any]:
    entries = origin.entries
    return {
        "files": list(origin.files),
        "bars": sum(entry.bars for entry in entries),
        "first": min((entry.first for entry in entries), default=""),
        "last": max((entry.last for entry in entries), default=""),
        "holes": sum(entry.num_holes for entry in entries),
        "synthetic": origin.synthetic,
        "fingerprint": origin.made.fingerprint,
    }


def _series(
    data: PieceData, scored: Sequence[SeriesScores], entries: Sequence[SymbolPlan]
) -> list[CardSeries]:
    """Return each series' entry. The scores of a single series are stored in the card only."""
    numbers = data.panel.numbers if data.panel else (0,) * len(data.series)
    return [
        CardSeries(
            symbol=one.symbol,
            calendar=one.calendar,
            horizon=one.horizon_bars,
            scaler=_scaler(mean_F, std_F),
            splits=one.splits(),
            fitted=its.fitted,
            data={
                "bars": entry.bars,
                "first": entry.first,
                "last": entry.last,
                "holes": entry.num_holes,
                "ties": one.ties,
            },
            metrics={span: its.scores[span] for span in ("validation", "test")} if len(scored) > 1 else {},
            number=number,
        )
        for one, (mean_F, std_F), its, entry, number in zip(
            data.series, data.scalers, scored, entries, numbers, strict=True
        )
    ]


def _scaler(mean_F: torch.Tensor, std_F: torch.Tensor) -> dict[str, Any]:
    """Return a scaler as JSON values; `limit` is in standard deviations. JSON's float64 text keeps a float32
    exactly.
    """
    return {"mean": mean_F.tolist(), "std": std_F.tolist(), "limit": INPUT_LIMIT}


def _panel(data: PieceData, scored: Sequence[SeriesScores]) -> CardPanel | None:
    """Return the entry that all series of a panel share, or None. Calibrated values are the same in every
    series' `fitted`.
    """
    if data.panel is None:
        return None
    return CardPanel(
        scaler_of=data.panel.scaler,
        scaler=_scaler(data.panel.mean_F, data.panel.std_F),
        fitted={**scored[0].fitted, **data.panel.fitted},
        calendar=data.series[0].calendar,
        horizon=data.series[0].horizon_bars,
    )
