"""Evaluate a forecast: its scores beside simple baselines on the same bars, with intervals over cells.

Metrics and baselines are the target's, intervals those of `targets/inference.py`. Everything here is numpy on
the CPU, float64, deterministic. Baselines learn from the training bars only and are scored on the bars of the
requested span.

Shapes: N bars, K label columns, C cells.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

import numpy as np

from trainer.base.signs import sign
from trainer.targets.inference import CellMean, estimate
from trainer.targets.losses import MODEL
from trainer.targets.marks import gain_values
from trainer.targets.scoring import PerBar, Rows
from trainer.targets.target import LOWER, TargetSettings

SECOND = 1_000_000_000
DIGITS = 9  # of a loss in a card
GROUPS = 10  # of forecasts in a reliability table
RELIABILITY = ("n", "forecast", "happened", "low", "high")

Baselines = Mapping[str, np.ndarray]  # name -> forecasts
Interval = list[float] | None  # low and high


@dataclass(frozen=True, kw_only=True)
class Cells:
    """The cells of scored bars: the spans of time that an interval takes as one value each."""

    of_bar: np.ndarray  # (N,), later ones higher
    length: str
    times: np.ndarray  # (N,) int64 ns of each bar

    @property
    def places(self) -> np.ndarray:
        """Return the place (N,) of each bar's cell among those with bars."""
        return np.asarray(np.unique(self.of_bar, return_inverse=True)[1])


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A forecast's scores beside those of baselines, and the losses from which they can be compared again."""

    scores: dict[str, Any]
    losses: dict[str, Any]  # as a card has them
    reliability: dict[str, Any]  # by event, as a card has it


def cells_of(target: TargetSettings, rows: Rows) -> Cells:
    """Return the cells of a series' scored bars."""
    of_bar, length = target.cells(rows)
    return Cells(of_bar=of_bar, length=length, times=rows.candles.timestamp[rows.scored])


def evaluate(
    forecast: np.ndarray, target: TargetSettings, rows: Rows, *, forecasts: Baselines | None = None
) -> Compared:
    """Score a model's forecasts (N, ...) for the scored bars beside the target's baselines on the same bars.

    `forecasts` are the baselines' forecasts for these bars, if already computed.
    """
    forecasts = target.baselines(rows) if forecasts is None else forecasts
    labels = rows.labels(rows.scored)
    return compare(forecast, target, labels, cells=cells_of(target, rows), forecasts=forecasts)


def compare(
    forecast: np.ndarray, target: TargetSettings, labels: np.ndarray, *, cells: Cells, forecasts: Baselines
) -> Compared:
    """Score forecasts (N, ...) beside the baselines' on labels (N, K).

    The scores are the target's metrics, the dates of the `first` and `last` bar, `cells` and a cell's length,
    `intervals` {metric: [low, high]}, `baselines` {name: metrics}, and `better` {baseline: {metric: gain}}
    for proper scores: the gain over each baseline, positive if the model is better, with its error, degrees
    of freedom and interval. Intervals and gains are null with too few cells.
    """
    places_N = cells.places
    ours = target.per_bar(forecast, labels)
    lower = {metric.name for metric in target.metrics if metric.better == LOWER}
    gains, theirs = {}, {}
    sums = {metric: {MODEL: _sums(ours[metric], places_N)} for metric in target.proper}
    for name, other in forecasts.items():  # in turn: values by bar are many times as large as a forecast
        its = target.per_bar(other, labels)
        gains[name] = {
            metric: _gain(ours, its, metric, metric in lower, places_N) for metric in target.proper
        }
        theirs[name] = target.scores_of(its, other, labels)
        for metric in target.proper:
            sums[metric][name] = _sums(its[metric], places_N)
    scores = {
        **target.scores_of(ours, forecast, labels),
        **dates(cells.times),
        "intervals": {name: interval(each_N, places_N) for name, each_N in ours.items()},
        "cells": int(places_N.max()) + 1,
        "cell": cells.length,
        "baselines": theirs,
        "better": gains,
    }
    told = {
        event: reliability(chances, happened, places_N)
        for event, (chances, happened) in target.events(forecast, labels).items()
    }
    return Compared(scores=scores, losses={**_grid(cells, places_N), "sums": sums}, reliability=told)


def reliability(chances_N: np.ndarray, happened_N: np.ndarray, places_N: np.ndarray) -> dict[str, Any]:
    """Return how often an event happened by the probability that was forecast, in up to ten groups of as many
    bars each, in ascending order: `n`, the mean `forecast`, the share that `happened`, and the `low` and
    `high` end of its 95 % interval over cells.
    """
    edges = np.unique(np.quantile(chances_N, np.linspace(0, 1, GROUPS + 1)[1:-1]))
    group_N = np.searchsorted(edges, chances_N, side="left")
    rows = []
    for group in np.unique(group_N):
        of = group_N == group
        counts = np.bincount(places_N, weights=of)
        found = estimate(np.bincount(places_N, weights=of * happened_N).tolist(), counts.tolist())
        ends = np.clip(found.interval(), 0, 1).tolist() if found else (None, None)
        rows.append((int(of.sum()), float(chances_N[of].mean()), float(happened_N[of].mean()), *ends))
    return dict(zip(RELIABILITY, map(list, zip(*rows, strict=True)), strict=True))


def dates(times: np.ndarray) -> dict[str, str]:
    """Return the dates of the first and the last of bars, by their times in ns."""
    ends = (int(times.min()), int(times.max()))
    return dict(
        zip(
            ("first", "last"),
            (f"{datetime.fromtimestamp(ns // SECOND, timezone.utc):%Y-%m-%d}" for ns in ends),
            strict=True,
        )
    )


def interval(each_N: np.ndarray | None, places_N: np.ndarray) -> Interval:
    """Return the 95 % interval of the mean of values whose cells have these places; None with too few."""
    found = _estimate(each_N, places_N)
    return list(found.interval()) if found else None


def _estimate(each_N: np.ndarray | None, places_N: np.ndarray) -> CellMean | None:
    sign("score")
    if each_N is None:
        return None
    return estimate(np.bincount(places_N, weights=each_N).tolist(), np.bincount(places_N).tolist())


def _gain(
    ours: PerBar, theirs: PerBar, metric: str, is_lower: bool, places_N: np.ndarray
) -> dict[str, Any] | None:
    mine, other = ours[metric], theirs[metric]
    if mine is None or other is None:
        return None
    found = _estimate(other - mine if is_lower else mine - other, places_N)
    return gain_values(found) if found else None


def _grid(cells: Cells, places_N: np.ndarray) -> dict[str, Any]:
    """Return when each cell begins, in seconds since 1970, and its number of bars."""
    begins_C = np.full(int(places_N.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(begins_C, places_N, cells.times)
    return {"begins": (begins_C // SECOND).tolist(), "bars": np.bincount(places_N).tolist()}


def _sums(each_N: np.ndarray | None, places_N: np.ndarray) -> list[float] | None:
    if each_N is None:
        return None
    return [float(f"{total:.{DIGITS}g}") for total in np.bincount(places_N, weights=each_N)]
