"""Scores of a trained model for its card: by series, and over all series.

Forecasts of all series are joined in the labels' own unit. Cells of time have the bars of all series in them,
since markets move together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import torch

from trainer.base.settings import CHUNKS
from trainer.base.text import counted
from trainer.data.timeframes import DAY
from trainer.job.job import Job
from trainer.targets.environment import EnvironmentTarget
from trainer.targets.scoring import PART, begins_of
from trainer.train.agents.episodes import EpisodeReader
from trainer.train.evaluate.evaluation import Baselines, Cells, compare, evaluate
from trainer.train.evaluate.trading import together, trade, traded_scores
from trainer.train.inputs.rows import SymbolData
from trainer.train.inputs.series import PieceData
from trainer.train.predict.readers import AtOnce, Evaluate, Inputs, Parts, Reader, outputs_of, reader_of

SPANS = ("validation", "test")
ALL = slice(None)  # bars of a span
Scores = dict[str, dict[str, Any]]  # by span; `about` describes them
Outputs = dict[str, list[np.ndarray]]  # by span, of each series


@dataclass(frozen=True, kw_only=True)
class Scored:
    """A model's scores, and what a card has besides of test: losses and trades by cell, and reliability; {}
    for a series of a panel.
    """

    scores: Scores
    losses: dict[str, Any] = field(default_factory=dict)
    reliability: dict[str, Any] = field(default_factory=dict)
    trades: dict[str, Any] = field(default_factory=dict)


AnyScored = TypeVar("AnyScored", bound=Scored)


@dataclass(frozen=True, kw_only=True)
class SeriesScores(Scored):
    """A model on one series: fitted values, scores, and forecasts by span, in the order of the span's
    bars.
    """

    fitted: dict[str, Any]
    forecasts: dict[str, np.ndarray]
    baselines: Baselines  # of the test span


def reader_for(data: SymbolData, job: Job, at_once: AtOnce = AtOnce()) -> Reader:
    """Return the reader that runs a model over the bars of a symbol's data."""
    if isinstance(job.target, EnvironmentTarget):
        return EpisodeReader(job.target, data.candles)
    inputs = Inputs(rows_TF=data.rows_TF, mean_F=data.mean_F, std_F=data.std_F, context_TC=data.context_TC)
    seen, first = data.bars_seen, data.first_bar
    return reader_of(job.model.reads, inputs, bars_seen=seen, first_bar=first, at_once=at_once)


def readings(data: PieceData, job: Job, span: str, *, some: slice = ALL, at_once: AtOnce = AtOnce()) -> Parts:
    """Return the parts of a span to evaluate, each its rows (N,) and reader: one part for windows, one per
    series for chunks. `some`: of these bars of each series.

    The outputs of all parts, concatenated, are in the order of the series.
    """
    rows = [one.rows(span)[some] for one in data.series]
    if job.model.reads == CHUNKS or job.target.has_environment:
        both = zip(data.series, rows, strict=True)
        return [(its, reader_for(one, job, at_once)) for one, its in both if len(its)]
    inputs = Inputs(rows_TF=data.rows_TF, mean_F=data.mean_F, std_F=data.std_F, context_TC=data.context_RC)
    seen = data.series[0].bars_seen
    reader = reader_of(job.model.reads, inputs, bars_seen=seen, first_bar=seen - 1, at_once=at_once)
    return [(np.concatenate([its + offset for its, offset in zip(rows, data.offsets, strict=True)]), reader)]


def outputs_by_span(
    model: torch.nn.Module,
    data: PieceData,
    job: Job,
    evaluate: Evaluate = outputs_of,
    *,
    validation_NO: np.ndarray | None = None,
) -> Outputs:
    """Return the outputs (N, O) of a trained model on validation and test, by span and series: the input of
    its scores.

    `evaluate` runs the model; with ranks, all of them must call this. `validation_NO` are the model's outputs
    on validation, where they are known.
    """
    made = {}
    for span in SPANS:
        ends = np.cumsum([len(one.rows(span)) for one in data.series])[:-1]
        if span == "validation" and validation_NO is not None:
            made[span] = np.split(validation_NO, ends)
            continue
        if data.panel is not None:
            parts: Parts = readings(data, job, span)
        else:  # each series alone, as in a prediction
            parts = [(rows, reader_for(one, job)) for one in data.series if len(rows := one.rows(span))]
        made[span] = np.split(evaluate(model, parts) if parts else np.empty((0, 1)), ends)
    return made


def score_series(
    outputs: Mapping[str, np.ndarray], data: SymbolData, baselines: Baselines | None = None
) -> SeriesScores:
    """Calibrate a trained model on a series' validation bars and score its `outputs` of each span.

    Validation gets plain scores; the test span is scored once, beside its baselines and with intervals.
    `about` describes the metrics. `baselines` are the baselines' forecasts in the test span, if already
    computed.
    """
    target = data.target
    fitted = target.calibrate(outputs["validation"], data.labels("validation"), data.fitted)
    forecasts = {span: target.forecast(values, fitted) for span, values in outputs.items()}
    rows = data.scored("test")
    baselines = target.baselines(rows) if baselines is None else baselines
    tested = evaluate(forecasts["test"], target, rows, forecasts=baselines)
    made = {
        "about": target.about(),
        "validation": target.scores(forecasts["validation"], data.labels("validation")),
        "test": tested.scores,
    }
    return _traded(
        SeriesScores(
            fitted=fitted,
            scores=made,
            forecasts=forecasts,
            baselines=baselines,
            losses=tested.losses,
            reliability=tested.reliability,
        ),
        [data],
        [forecasts["test"]],
    )


def joint_scores(series: Sequence[SymbolData], scored: Sequence[SeriesScores]) -> Scored:
    """Return the scores of a model on all of its series together."""
    if len(series) == 1:
        return scored[0]
    target = series[0].target  # open settings were chosen for all series together
    labels = {span: np.concatenate([data.labels(span) for data in series]) for span in SPANS}
    forecasts = {span: np.concatenate([one.forecasts[span] for one in scored]) for span in SPANS}
    names = [name for name in scored[0].baselines if all(name in one.baselines for one in scored)]
    times = np.concatenate([data.candles.timestamp[data.bars("test")] for data in series])
    tested = compare(
        forecasts["test"],
        target,
        labels["test"],
        cells=joint_cells(series, times),
        forecasts={name: np.concatenate([one.baselines[name] for one in scored]) for name in names},
    )
    made = {
        "about": target.about(),
        "validation": target.scores(forecasts["validation"], labels["validation"]),
        "test": tested.scores,
    }
    joint = Scored(scores=made, losses=tested.losses, reliability=tested.reliability)
    return _traded(joint, series, [one.forecasts["test"] for one in scored])


def _traded(scored: AnyScored, series: Sequence[SymbolData], forecasts: Sequence[np.ndarray]) -> AnyScored:
    """Return scores with what the plain rule made on the forecasts of all series; as they are of a target
    that nobody trades on.
    """
    parts = [
        trade(forecast, data.target, data.scored("test"))
        for data, forecast in zip(series, forecasts, strict=True)
    ]
    known = [part for part in parts if part is not None]
    if not known:
        return scored
    bars = together(known)
    made, by_cell = traded_scores(bars, joint_cells(series, bars.times))
    test = {**scored.scores["test"], "trading": made}
    return replace(scored, scores={**scored.scores, "test": test}, trades=by_cell)


def joint_cells(series: Sequence[SymbolData], times: np.ndarray) -> Cells:
    """Return the cells of bars of several series by their times (N,): of days enough for each series' own."""
    days = max(days_of_a_cell(data) for data in series)
    return Cells(of_bar=times // (days * DAY), length=counted(days, "day"), times=times)


def days_of_a_cell(data: SymbolData) -> int:
    """Return the median time between starts of a series' cells, in whole days, 1 or more.

    Over all of its bars: a series of a panel may have few in test, far apart.
    """
    rows, bars = data.scored("test"), len(data.candles)
    parts = (np.arange(first, min(first + PART, bars)) for first in range(0, bars, PART))
    cells = (data.target.cells(replace(rows, scored=part))[0] for part in parts)
    begins = data.candles.timestamp[begins_of(cells)]
    return max(1, round(float(np.median(np.diff(begins))) / DAY)) if len(begins) > 1 else 1
