"""Evaluate a forecast: its scores beside simple baselines on the same bars, with bootstrap intervals.

Owns block-bootstrap intervals, drawn by arch; metrics and baselines are the target's. Everything here is
numpy on the CPU, float64, deterministic by seed. Baselines learn from the training bars only and are scored
on the bars of the requested span.

Shapes: N bars, K label columns, B blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from trainer.base.signs import sign
from trainer.targets.scoring import Rows, Statistic
from trainer.targets.target import LOWER, TargetSettings

LEVEL = 0.95
REPLICATES = 500
FEWEST_BLOCKS = 5  # fewer give no meaningful interval

Baselines = Mapping[str, np.ndarray]  # name -> forecasts


Interval = list[float] | None  # low and high: the middle of a value over resampled blocks


def evaluate(
    forecast: np.ndarray,
    target: TargetSettings,
    rows: Rows,
    *,
    forecasts: Baselines | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Score a model's forecasts (N, ...) for the scored bars beside the target's baselines on the same bars,
    with intervals.

    Returns the target's metrics, `intervals` {metric: [low, high]}, `blocks` and a block's length,
    `baselines` {name: metrics}, and `better` {baseline: {metric: [low, high]}}: the model's gain over each
    baseline on the same resampled blocks. A gain is significant if its interval lies above zero. Intervals
    are null with fewer than five blocks. `forecasts` are the baselines' forecasts for these bars, if already
    computed; `options` are those of `block_bootstrap`.
    """
    blocks, length = target.blocks(rows)
    forecasts = target.baselines(rows) if forecasts is None else forecasts
    labels = rows.labels(rows.scored)
    return compare(forecast, target, labels, blocks=blocks, length=length, forecasts=forecasts, **options)


def compare(
    forecast: np.ndarray,
    target: TargetSettings,
    labels: np.ndarray,
    *,
    blocks: np.ndarray,
    length: Mapping[str, int],
    forecasts: Baselines,
    **options: Any,
) -> dict[str, Any]:
    """Score forecasts (N, ...) beside the baselines' on labels (N, K), as `evaluate` does. `blocks` (N,):
    each bar's block.
    """
    _, block_N = np.unique(blocks, return_inverse=True)
    num_blocks = int(block_N.max()) + 1
    ours = target.weighted(forecast, labels, block_N)
    theirs = {name: target.weighted(other, labels, block_N) for name, other in forecasts.items()}
    lower = {metric.name for metric in target.metrics if metric.better == LOWER}

    def with_gains(weights: np.ndarray) -> dict[str, float | None]:
        values = dict(ours(weights))
        for name, statistic in theirs.items():
            other = statistic(weights)
            for metric in target.gains:
                pair = (other[metric], values[metric]) if metric in lower else (values[metric], other[metric])
                values[f"{name} {metric}"] = _gain(*pair)
        return values

    intervals = block_bootstrap(with_gains, np.arange(num_blocks), **options)
    return {
        **target.scores(forecast, labels),
        "intervals": {name: intervals[name] for name in ours(np.ones(num_blocks))},
        "blocks": num_blocks,
        **length,
        "baselines": {name: target.scores(other, labels) for name, other in forecasts.items()},
        "better": {
            name: {metric: intervals[f"{name} {metric}"] for metric in target.gains} for name in forecasts
        },
    }


def block_bootstrap(
    statistic: Statistic,
    blocks: np.ndarray,
    *,
    replicates: int = REPLICATES,
    seed: int = 0,
    level: float = LEVEL,
) -> dict[str, Interval]:
    """Return the percentile interval of each value of `statistic`, over whole blocks drawn with replacement.

    `blocks` (N,) is the block of each window. Replicates in which a value is None are left out; an interval
    is None with fewer than five blocks, or with values in fewer than half of the replicates. Kuensch (1989),
    with blocks fixed in time.
    """
    from arch.bootstrap import IIDBootstrap  # late: importing it takes a second and 120 MB

    _, block_N = np.unique(blocks, return_inverse=True)
    num_blocks = int(block_N.max()) + 1
    names = list(statistic(np.ones(len(block_N))))

    def values(drawn_B: np.ndarray) -> np.ndarray:
        sign("score")
        times = np.bincount(drawn_B, minlength=num_blocks)
        estimates = statistic(times[block_N].astype(np.float64))
        return np.array([estimates[name] for name in names], dtype=np.float64)  # None becomes NaN

    drawn_RK = IIDBootstrap(np.arange(num_blocks), seed=seed).apply(values, replicates)
    tail = (1 - level) / 2
    return {name: _interval(drawn_RK[:, column], tail, num_blocks) for column, name in enumerate(names)}


def _gain(better: float | None, worse: float | None) -> float | None:
    return None if better is None or worse is None else better - worse


def _interval(drawn_R: np.ndarray, tail: float, num_blocks: int) -> Interval:
    values = drawn_R[~np.isnan(drawn_R)]
    if num_blocks < FEWEST_BLOCKS or len(values) * 2 < len(drawn_R):
        return None
    low, high = np.quantile(values, [tail, 1 - tail])
    return [float(low), float(high)]
