"""Build the cards of models from a piece's data, settings, training and scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime, timezone
from typing import Any

import torch

import trainer
from trainer.bars.document import SymbolPlan
from trainer.data.feature_names import label_of
from trainer.data.side_names import features_beside
from trainer.data.timeframes import step_of
from trainer.job.job import Job
from trainer.job.pieces.piece import Piece
from trainer.job.trials import told_of
from trainer.store.card import LATER_BARS, TOLD_COLUMNS, Card, CardPanel, CardSeries
from trainer.store.weights import weights_sha256
from trainer.targets.described import REFIT, TRIED
from trainer.targets.target import TargetSettings
from trainer.train.evaluate.scores import Scored, SeriesScores
from trainer.train.hardware import Hardware
from trainer.train.inputs.encoder import parent_of
from trainer.train.inputs.series import PieceData
from trainer.train.inputs.source import Origin
from trainer.train.packs.pack import architecture_of
from trainer.train.precision import DTYPES
from trainer.train.predict.readers import INPUT_LIMIT
from trainer.train.stages import FittedNetwork

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
    fits: Sequence[FittedNetwork],
    data: PieceData,
    origin: Origin,
    scored: Sequence[SeriesScores],
    joint: Scored,
    hardware: Hardware,
    choice: Mapping[str, Any],
) -> Card:
    """Return the card of a piece that the training loop trained: of one network, or of several whose mean it
    forecasts.
    """
    first, *others = (fit.facts for fit in fits)
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
        features=job.target.names_of_features(job.data.inputs),
        columns=[] if job.target.has_environment else list(job.data.further),
        features_version=label_of(
            job.data.features,
            (*job.data.computed, *features_beside(job.data.further)),
            job.data.own.sha256 if job.data.own else "",
        ),
        series=_series(data, [one.fitted for one in scored], _by_series(scored), origin.entries),
        architecture=architecture_of(job, features=len(job.data.inputs)),
        lookback=job.model.bars_seen,
        metrics=_scores_of(joint.scores, piece),
        losses=joint.losses,
        reliability=joint.reliability,
        trades=joint.trades,
        training={
            **{name: getattr(job.train, name) for name in SETTINGS},
            **{name: getattr(job.expert, name) for name in EXPERT_SETTINGS},
            **({"agent": asdict(job.agent)} if job.target.acts else {}),
            **({"search": told_of(piece.trials)} if piece.trials else {}),
            **first,
            **({"others": others} if others else {}),
            "pack_mates": _mates(piece.name, fits, job.expert.strategy),
            **asdict(hardware),
            "choice": dict(choice),
            "threads": piece.threads,
            "torch": torch.__version__,
            "precision": str(DTYPES[hardware.precision]).removeprefix("torch."),
        },
        data={
            **_data(origin),
            **_told(job),
            **_later_bars(data),
            "ties": sum(one.ties for one in data.series),
        },
        panel=_panel(data, [one.fitted for one in scored]),
        trained_until=until_of_spans(data, "validation", "after"),
        members=len(fits),
        tried=piece.tried,
        test_scored=1 + max(fit.scored_before for fit in fits),
        code_sha256=origin.made.code,
        seed=piece.seed,
        fold=piece.fold,
        folds=job.data.folds,
        created_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        mayfly=trainer.__version__,
    )


def _scores_of(scores: Mapping[str, Any], piece: Piece) -> dict[str, Any]:
    """Return scores by span; of the best of several trials with their number, which corrects its mark."""
    if not piece.trials:
        return dict(scores)
    return {**scores, "about": {**scores["about"], TRIED: told_of(piece.trials)["tried"]}}


def card_of_refit(
    held_out: Card,
    refits: Sequence[FittedNetwork],
    data: PieceData,
    origin: Origin,
    *,
    twin: Mapping[str, torch.Tensor],
) -> Card:
    """Return the card of a model that was trained again on all bars, by that of its first fits, whose scores
    and calibration it keeps. `twin` are the first fits' tensors.
    """
    fitted = [{**old.fitted, **one.fitted} for old, one in zip(held_out.series, data.series, strict=True)]
    known, until = asdict(held_out), until_of_spans(data, "train")
    return replace(
        held_out,
        metrics={**held_out.metrics, "about": {**held_out.metrics["about"], REFIT: until}},
        series=_series(data, fitted, [one.metrics for one in held_out.series], origin.entries),
        panel=_panel(data, fitted),
        trained_until=until,
        held_out={
            "sha256": weights_sha256(twin),
            **{name: known[name] for name in ("trained_until", "series", "panel")},
        },
        training={
            **held_out.training,
            "refit": [fit.facts for fit in refits],
            "pack_mates": _mates(held_out.model, refits, held_out.training["strategy"]),
        },
        created_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
    )


def _mates(model: str, fits: Sequence[FittedNetwork], strategy: str) -> list[str]:
    """Return the models that were in a pack with a model, itself included, where its last digits may depend
    on them: in a fused pack. Modules of the other strategies are computed each by itself.
    """
    if strategy != "fused":
        return [model]
    return list(dict.fromkeys(name for fit in fits for name in (model, *fit.mates)))


def until_of_spans(data: PieceData, *spans: str) -> str:
    """Return when the bars of spans end: the latest end over all series (ISO 8601, UTC)."""
    ends = [
        int(one.candles.timestamp[bars.stop - 1]) + step_of(one.candles.timeframe)
        for one in data.series
        for span in spans
        if len(bars := getattr(one.spans, span))
    ]
    if not ends:
        return ""
    seconds = -(-max(ends) // 10**9)
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _data(origin: Origin) -> dict[str, Any]:
    entries = origin.entries
    return {
        "files": list(origin.files),
        "bars": sum(entry.bars for entry in entries),
        "first": min((entry.first for entry in entries), default=""),
        "last": max((entry.last for entry in entries), default=""),
        "holes": sum(entry.num_holes for entry in entries),
        "synthetic": origin.synthetic,
        **({"origins": list(origin.origins)} if origin.origins else {}),
        "fingerprint": origin.made.fingerprint,
    }


def _later_bars(data: PieceData) -> dict[str, bool]:
    """Return the mark of a model that was trained on bars after its test span; {} for any other."""
    return {LATER_BARS: True} if any(len(one.spans.after) for one in data.series) else {}


def _told(job: Job) -> dict[str, list[str]]:
    """Return what the job tells about the parts of a bar, which predictions read, too; {} for nothing."""
    told = [entry for entry in job.data.columns if entry not in job.data.further]
    return {TOLD_COLUMNS: told} if told else {}


def _by_series(scored: Sequence[SeriesScores]) -> list[dict[str, Any]]:
    """Return the scores of each series by span; {} of a single one, whose scores are the card's."""
    if len(scored) == 1:
        return [{}]
    return [{span: its.scores[span] for span in ("validation", "test")} for its in scored]


def _series(
    data: PieceData,
    fitted: Sequence[Mapping[str, Any]],
    metrics: Sequence[dict[str, Any]],
    entries: Sequence[SymbolPlan],
) -> list[CardSeries]:
    """Return each series' entry, with its fitted values and its scores by span."""
    numbers = data.panel.numbers if data.panel else (0,) * len(data.series)
    return [
        CardSeries(
            symbol=one.symbol,
            calendar=one.calendar,
            horizon=one.horizon_bars,
            scaler=_unscaled(one.target) if one.target.has_environment else _scaler(mean_F, std_F),
            splits=one.splits(),
            fitted=dict(its),
            data={
                "bars": entry.bars,
                "first": entry.first,
                "last": entry.last,
                "holes": entry.num_holes,
                "ties": one.ties,
            },
            metrics=scores,
            number=number,
        )
        for one, (mean_F, std_F), its, scores, entry, number in zip(
            data.series, data.scalers, fitted, metrics, entries, numbers, strict=True
        )
    ]


def _scaler(mean_F: torch.Tensor, std_F: torch.Tensor) -> dict[str, Any]:
    """Return a scaler as JSON values; `limit` is in standard deviations. JSON's float64 text keeps a float32
    exactly.
    """
    return {"mean": mean_F.tolist(), "std": std_F.tolist(), "limit": INPUT_LIMIT}


def _unscaled(target: TargetSettings) -> dict[str, Any]:
    """Return the scaler of an observation, which the network reads as it is."""
    seen = target.features(0)
    return {"mean": [0.0] * seen, "std": [1.0] * seen, "limit": torch.finfo(torch.float32).max}


def _panel(data: PieceData, fitted: Sequence[Mapping[str, Any]]) -> CardPanel | None:
    """Return the entry that all series of a panel share, or None. Calibrated values are the same in every
    series' `fitted`.
    """
    if data.panel is None:
        return None
    return CardPanel(
        scaler_of=data.panel.scaler,
        scaler=_scaler(data.panel.mean_F, data.panel.std_F),
        fitted={**fitted[0], **data.panel.fitted},
        calendar=data.series[0].calendar,
        horizon=data.series[0].horizon_bars,
    )
