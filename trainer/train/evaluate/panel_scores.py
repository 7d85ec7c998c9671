"""Scores of a panel's model: of each series, of all together, and the rank correlation by date.

The rank correlation (rank information coefficient) of a date is Spearman's between the forecasts and the
labels of the series that have both there; the score is its mean over dates, each counting once.

Baselines are fitted once, on the training bars of all series, as the model is. A series has no intervals of
its own: a panel has hundreds. Shapes: N bars of all series, O outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from trainer.targets.target import HIGHER, TargetSettings
from trainer.train.evaluate.evaluation import Baselines, interval
from trainer.train.evaluate.scores import (
    SPANS,
    Outputs,
    Scored,
    Scores,
    SeriesScores,
    joint_cells,
    joint_scores,
)
from trainer.train.inputs.series import PieceData

RANK_CORRELATION = "rank_correlation"
FEWEST_SERIES = 3  # on a date: the order of two says next to nothing


def score_panel(
    outputs: Outputs, data: PieceData, baselines: Sequence[Baselines]
) -> tuple[list[SeriesScores], Scored]:
    """Calibrate a trained model on the validation bars of all series; return its scores on each series and on
    all.

    `outputs` come from `outputs_by_span`, `baselines` from `panel_baselines`.
    """
    assert data.panel is not None
    target = data.series[0].target
    labels = {span: [one.labels(span) for one in data.series] for span in SPANS}
    counts = [len(one) for one in labels["validation"]]
    fits = {  # by bar, since with scaler = "series" each series has a fit of its own
        name: np.repeat([one.fitted[name] for one in data.series], counts) for name in data.panel.fitted
    }
    calibrated = target.calibrate(
        np.concatenate(outputs["validation"]), np.concatenate(labels["validation"]), fits
    )
    scored = []
    for number, (one, known) in enumerate(zip(data.series, baselines, strict=True)):
        fitted = {**calibrated, **one.fitted}
        forecasts = {span: target.forecast(outputs[span][number], fitted) for span in SPANS}
        made: Scores = {"about": target.about()}
        for span in SPANS:
            has = len(labels[span][number]) > 0
            made[span] = target.scores(forecasts[span], labels[span][number]) if has else {}
        if made["test"]:
            theirs = {name: target.scores(other, labels["test"][number]) for name, other in known.items()}
            made["test"]["baselines"] = theirs
        scored.append(SeriesScores(fitted=fitted, scores=made, forecasts=forecasts, baselines=known))
    joint = joint_scores(data.series, scored)
    return scored, replace(joint, scores=_with_rank_correlation(data, scored, joint.scores))


def panel_baselines(data: PieceData) -> list[Baselines]:
    """Return the baselines' forecasts in the test span, by series, fitted on the training bars of all of
    them.
    """
    target = data.series[0].target
    made = target.baselines(*(one.scored("test") for one in data.series))
    ends = np.cumsum([len(one.rows("test")) for one in data.series])[:-1]
    parts = {name: np.split(forecast, ends) for name, forecast in made.items()}
    return [{name: split[number] for name, split in parts.items()} for number in range(len(data.series))]


def rank_correlations(
    forecast_N: np.ndarray, labels_N: np.ndarray, dates_N: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the dates (D,) int64 on which series can be compared, and the rank correlation (D,) of each.

    Dates with fewer than three series, or with equal labels only, are left out. A date with equal forecasts
    only counts as 0.
    """
    dates, place_N = np.unique(dates_N, return_inverse=True)
    order_N = np.argsort(place_N, kind="stable")
    ends = np.cumsum(np.bincount(place_N, minlength=len(dates)))[:-1]
    kept, values = [], []
    for date, members in zip(dates, np.split(order_N, ends), strict=True):
        if len(members) < FEWEST_SERIES or np.ptp(labels_N[members]) == 0:
            continue
        x, y = (_centred_ranks(one[members]) for one in (forecast_N, labels_N))
        spread = float(np.sqrt((x @ x) * (y @ y)))
        kept.append(date)
        values.append(float(x @ y) / spread if spread else 0.0)
    return np.array(kept, dtype=np.int64), np.array(values)


def _centred_ranks(values: np.ndarray) -> np.ndarray:
    """Return the ranks of values, ties averaged, less the mean rank."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - (counts - 1) / 2
    return np.asarray(ranks[place] - (len(values) + 1) / 2)


def _with_rank_correlation(data: PieceData, scored: Sequence[SeriesScores], scores: Scores) -> Scores:
    """Return the scores of all series with the rank correlation: value, interval, and each baseline's."""
    target = data.series[0].target
    by_span = {span: _by_date(data, target, span, [one.forecasts[span] for one in scored]) for span in SPANS}
    dates, ours = by_span["test"]
    test: dict[str, Any] = scores["test"]
    theirs = {
        name: _by_date(data, target, "test", [one.baselines[name] for one in scored])[1]
        for name in test["baselines"]
    }
    bounds = interval(ours, joint_cells(data.series, dates).places) if ours.any() else None
    added: dict[str, Any] = {RANK_CORRELATION: _mean(ours), "dates": len(dates)}
    added["intervals"] = {**test["intervals"], RANK_CORRELATION: bounds}
    added["baselines"] = {
        name: {**its, RANK_CORRELATION: _mean(theirs[name])} for name, its in test["baselines"].items()
    }
    in_validation = by_span["validation"][1]
    validation = {RANK_CORRELATION: float(in_validation.mean()) if len(in_validation) else None}
    return {
        "about": _about(scores["about"]),
        "validation": {**scores["validation"], **validation},
        "test": {**test, **added},
    }


def _mean(values_D: np.ndarray) -> float | None:
    """Return the mean rank correlation; None of forecasts that are equal on every date."""
    return float(values_D.mean()) if values_D.any() else None


def _about(about: Mapping[str, Any]) -> dict[str, Any]:
    """Return `about`, the description of a target's metrics, with the rank correlation added."""
    metrics = {**about["metrics"], RANK_CORRELATION: {"title": "rank IC", "better": HIGHER, "unit": ""}}
    column = {"title": "rank IC", "value": [RANK_CORRELATION], "beside": []}
    return {**about, "metrics": metrics, "table": [*about["table"], column]}


def _by_date(
    data: PieceData, target: TargetSettings, span: str, forecasts: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the dates and rank correlations (D,) of a span; `forecasts` are those of each series."""
    labels = np.concatenate([one.labels(span)[:, 0] for one in data.series])
    dates = np.concatenate([one.candles.timestamp[one.bars(span)] for one in data.series])
    return rank_correlations(np.concatenate([target.order(one) for one in forecasts]), labels, dates)
