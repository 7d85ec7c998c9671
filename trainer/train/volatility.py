"""How good a forecast of volatility is, beside what simple forecasts reach on the same bars, and how sure that is.

Forecasts and labels are logs of realized volatility. Owns the metrics and the baselines; the bootstrap is `evaluation`'s.
Everything here is numpy on the CPU, float64, deterministic by seed. Baselines learn from the training bars only.

Shapes: N bars.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import nn

from trainer.config import Job
from trainer.data.streams import StreamData
from trainer.data.timeframes import DAY
from trainer.data.volatility import trailing_volatility
from trainer.train.evaluation import REPLICATES, Statistic, block_bootstrap
from trainer.train.loop import Run
from trainer.train.packs.chunks import StreamEvaluator
from trainer.train.packs.pack import Member

SPANS = ("validation", "test")
HAR_SESSIONS = (1, 5, 22)  # a day, a week and a month: Corsi 2009, https://doi.org/10.1093/jjfinec/nbp001, equation 8
FEWEST_HAR_SESSIONS = 4  # of training, for each session that a term of HAR looks back: a term too long has too few values


def stream_run(model: str, symbol: str, data: StreamData, job: Job, *, seed: int, draws: str = "") -> Run:
    """Return a run of the training loop whose windows are chunks, and whose validation is the squared error of every bar.

    `seed` and `draws` as in `pack.Member`.
    """
    member = Member(
        name=model,
        rows_TF=data.rows_TF,
        labels_T=data.train_labels_T,
        mean_F=data.mean_F,
        std_F=data.std_F,
        seed=seed,
        draws=draws,
    )
    bars = bars_of(data, "validation", job)
    labels = (labels_of(data, bars) - data.label_mean) / data.label_std

    def validate(network: nn.Module) -> float:
        return float(np.mean((evaluator_of(data, job).outputs(network, bars) - labels) ** 2))

    starts = {**data.starts, "train": data.chunk_starts}
    return Run(member=member, symbol=symbol, starts=starts, learning_rate=job.learning_rate, validate=validate)


def stream_scores(model: nn.Module, data: StreamData, job: Job) -> dict[str, dict[str, Any]]:
    """Score a trained model on validation and test: what its card says."""
    evaluator = evaluator_of(data, job)
    scores = {}
    for span in SPANS:
        bars = bars_of(data, span, job)
        forecast = evaluator.outputs(model, bars) * data.label_std + data.label_mean
        scores[span] = evaluate_volatility(forecast, data, job, span=span)
    return scores


def evaluator_of(data: StreamData, job: Job) -> StreamEvaluator:
    """Return what runs a model over the symbol's bars."""
    return StreamEvaluator(
        rows_TF=data.rows_TF,
        mean_F=data.mean_F,
        std_F=data.std_F,
        first=data.first_bar,
        bars_seen=job.bars_seen,
    )


def evaluate_volatility(
    forecast: np.ndarray, data: StreamData, job: Job, *, span: str, replicates: int = REPLICATES, seed: int = 0
) -> dict[str, Any]:
    """Score forecasts (N,) for the bars of `span` beside the baselines on the same bars, with intervals.

    Returns `metrics_of`'s values, and `intervals` {metric: [low, high]}, `blocks`, `block_sessions`, `baselines`
    {name: metrics}, and `better` {baseline: {metric: [low, high]}}: the model's gain over each on the same resampled blocks,
    beyond chance where the interval lies above zero. A block is `block_sessions` sessions, no fewer than the horizon.
    Intervals are null below five blocks.
    """
    bars = bars_of(data, span, job)
    labels = labels_of(data, bars)
    blocks = data.clock[bars] // DAY // data.horizon_sessions
    simple = baselines(data, job, span=span)
    ours = weighted_metrics(forecast, labels)
    theirs = {name: weighted_metrics(other, labels) for name, other in simple.items()}

    def together(weights: np.ndarray) -> dict[str, float | None]:
        values = dict(ours(weights))
        for name, statistic in theirs.items():
            other = statistic(weights)
            values[f"{name} correlation"] = _gain(values["correlation"], other["correlation"])
            values[f"{name} qlike"] = _gain(other["qlike"], values["qlike"])
        return values

    found = block_bootstrap(together, blocks, replicates=replicates, seed=seed)
    listed = {name: None if interval is None else [interval.low, interval.high] for name, interval in found.items()}
    return {
        **metrics_of(forecast, labels),
        "intervals": {name: listed[name] for name in ("correlation", "qlike", "mse")},
        "blocks": len(np.unique(blocks)),
        "block_sessions": data.horizon_sessions,
        "baselines": {name: metrics_of(other, labels) for name, other in simple.items()},
        "better": {name: {kind: listed[f"{name} {kind}"] for kind in ("correlation", "qlike")} for name in simple},
    }


def metrics_of(forecast: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    """Return n, correlation (of the logs; null where either is constant), qlike and mse (of the logs)."""
    return {"n": len(labels), **weighted_metrics(forecast, labels)(np.ones(len(labels)))}


def weighted_metrics(forecast: np.ndarray, labels: np.ndarray) -> Statistic:
    """Return a function of bar weights that gives `metrics_of`'s values.

    qlike is the mean of v/f - log(v/f) - 1 over realized variance v and forecast variance f, zero where they agree: the loss
    that ranks forecasts alike whatever the noise in v (Patton 2011, https://doi.org/10.1016/j.jeconom.2010.03.034).
    """
    missed = 2 * (labels - forecast)  # log of v/f
    qlike, squared = np.exp(missed) - missed - 1, (labels - forecast) ** 2

    def values(weights: np.ndarray) -> dict[str, float | None]:
        share = weights / weights.sum()
        x, y = forecast - share @ forecast, labels - share @ labels
        spread = float(np.sqrt((share @ (x * x)) * (share @ (y * y))))
        return {
            "correlation": float(share @ (x * y)) / spread if spread > 1e-12 else None,
            "qlike": float(share @ qlike),
            "mse": float(share @ squared),
        }

    return values


def baselines(data: StreamData, job: Job, *, span: str) -> dict[str, np.ndarray]:
    """Return the log volatility that each simple forecast tells for the bars of `span`.

    trailing: that of the last `horizon_sessions` sessions goes on. har: a regression of the log of what comes on the logs of
    the last session, week and month (Corsi 2009), as far as training has enough sessions for them.
    """
    train, scored = (bars_of(data, name, job) for name in ("train", span))
    trailing = trailing_volatility(data.close, data.clock, data.horizon_sessions)
    sessions = (data.clock[train[-1]] - data.clock[train[0]]) // DAY
    terms = [term for term in HAR_SESSIONS if term == 1 or term * FEWEST_HAR_SESSIONS <= sessions]
    columns = np.stack([trailing_volatility(data.close, data.clock, term) for term in terms], axis=1)
    known = train[np.isfinite(columns[train]).all(axis=1)]
    weights = np.linalg.lstsq(_with_intercept(columns[known]), labels_of(data, known), rcond=None)[0]
    # Where nothing moved for so long, or the series is too short, what training saw on average stands in.
    return {
        "trailing": np.where(np.isfinite(trailing[scored]), trailing[scored], data.label_mean),
        "har": _with_intercept(np.where(np.isfinite(columns[scored]), columns[scored], data.label_mean)) @ weights,
    }


def bars_of(data: StreamData, span: str, job: Job) -> np.ndarray:
    """Return the rows (N,) of the bars of a span that have a label, ascending."""
    return np.asarray(data.starts[span].cpu().numpy() + job.bars_seen - 1)


def labels_of(data: StreamData, bars: np.ndarray) -> np.ndarray:
    """Return the labels (N,) float64 of bars, unscaled."""
    return np.asarray(data.labels_T.cpu().numpy()[bars].astype(np.float64))


def _with_intercept(columns: np.ndarray) -> np.ndarray:
    return np.concatenate([columns, np.ones((len(columns), 1))], axis=1)


def _gain(better: float | None, worse: float | None) -> float | None:
    return None if better is None or worse is None else better - worse
