"""How far a score can be trusted: what simple forecasts reach on the same windows, and how much chance moves a score.

Owns baselines and block-bootstrap intervals; the metrics themselves are `score.metrics`. Everything here is numpy on the CPU,
float64, deterministic by seed. Baselines learn from the training windows only and are scored on the windows of the span that
is asked for.

Shapes: N windows, F features, B blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainer.data.timeframes import DAY
from trainer.data.windows import SymbolData
from trainer.train.score import metrics

LEVEL = 0.95
REPLICATES = 500
FEWEST_BLOCKS = 5  # below this an interval says more about the blocks than about the model
_RIDGE = 1.0  # on scaled features, in units of the summed log loss: enough to keep collinear returns finite
_NEWTON_STEPS = 25
_CHUNK_ROWS = 1 << 16

Baselines = Mapping[str, np.ndarray]  # name -> probabilities
Statistic = Callable[[np.ndarray], Mapping[str, float | None]]  # weights of windows or blocks -> named values


@dataclass(frozen=True, kw_only=True)
class Interval:
    """The middle 95 % of a value over resampled blocks."""

    low: float
    high: float


def baselines(data: SymbolData, close: np.ndarray, *, lookback: int, horizon: int, span: str) -> Baselines:
    """Return the probability of each simple forecast for the windows of `span`, in the order of data.starts[span].

    base_rate: the share of ups in training. persistence: the last move over `horizon` bars goes on; reversal: it turns.
    Both lean by as much as the last move told in training. logistic: a regression on the features of each window's last bar.
    """
    train, scored = (_last_bars(data, name, lookback) for name in ("train", span))
    labels = data.labels_T.cpu().numpy()[train].astype(np.float64)
    share = float(labels.mean())
    moved_train, moved = (_last_move(close, bars, horizon) for bars in (train, scored))
    lean = _lean(moved_train, labels)
    weights = fit_logistic(_scaled(data, train), labels)
    return {
        "base_rate": np.full(len(scored), share),
        "persistence": 0.5 + lean * moved,
        "reversal": 0.5 - lean * moved,
        "logistic": logistic(weights, _scaled(data, scored)),
    }


def evaluate(
    probabilities: np.ndarray,
    data: SymbolData,
    close: np.ndarray,
    *,
    lookback: int,
    horizon: int,
    span: str,
    replicates: int = REPLICATES,
    seed: int = 0,
    forecasts: Baselines | None = None,
) -> dict[str, Any]:
    """Score a model's probabilities for the windows of `span` beside the baselines on the same rows, with intervals.

    Returns score.metrics' values, and `intervals` {metric: [low, high]}, `blocks`, `block_bars`, `baselines` {name: metrics},
    and `better` {baseline: {"auc": [low, high], "log_loss": [low, high]}}: the model's gain over each, on the same resampled
    blocks; a gain is beyond chance where the interval lies above zero. Intervals are null below five blocks.
    `forecasts` are what `baselines` returned for this span, where somebody has asked before.
    """
    bars = _last_bars(data, span, lookback)
    labels = data.labels_T.cpu().numpy()[bars].astype(np.float64)
    block_bars = block_length(data.timestamps, horizon)
    _, place = np.unique(bars // block_bars, return_inverse=True)
    num_blocks = int(place.max()) + 1
    if forecasts is None:
        forecasts = baselines(data, close, lookback=lookback, horizon=horizon, span=span)
    ours = weighted_metrics(probabilities, labels, place)
    theirs = {name: weighted_metrics(forecast, labels, place) for name, forecast in forecasts.items()}

    def together(weights: np.ndarray) -> dict[str, float | None]:
        values = dict(ours(weights))
        for name, statistic in theirs.items():
            other = statistic(weights)
            values[f"{name} auc"] = _gain(values["auc"], other["auc"])
            values[f"{name} log_loss"] = _gain(other["log_loss"], values["log_loss"])
        return values

    found = block_bootstrap(together, np.arange(num_blocks), replicates=replicates, seed=seed)
    listed = {name: None if interval is None else [interval.low, interval.high] for name, interval in found.items()}
    return {
        **metrics(probabilities, labels),
        "intervals": {name: listed[name] for name in ("accuracy", "auc", "mcc", "log_loss", "brier")},
        "blocks": num_blocks,
        "block_bars": block_bars,
        "baselines": {name: metrics(forecast, labels) for name, forecast in forecasts.items()},
        "better": {name: {kind: listed[f"{name} {kind}"] for kind in ("auc", "log_loss")} for name in forecasts},
    }


def block_length(timestamps: np.ndarray, horizon: int) -> int:
    """Return the bars of a block: a day's (the median over days that have bars, UTC), and no fewer than the horizon.

    Labels of neighbouring bars overlap by up to the horizon, and days differ more than minutes do: single bars resampled would
    claim far too much certainty.
    """
    return max(horizon, int(np.median(np.unique(timestamps // DAY, return_counts=True)[1])))


def block_bootstrap(
    statistic: Statistic, blocks: np.ndarray, *, replicates: int = REPLICATES, seed: int = 0, level: float = LEVEL
) -> dict[str, Interval | None]:
    """Return the percentile interval of each value that `statistic` gives, over whole blocks drawn with replacement.

    `blocks` (N,) says which block each window is in. A value that is None in a replicate is left out of it; None instead of an
    interval where fewer than five blocks or half of the replicates speak. Kuensch (1989), with blocks fixed in time.
    """
    _, place = np.unique(blocks, return_inverse=True)
    num_blocks = int(place.max()) + 1
    random = np.random.default_rng(seed)
    drawn: dict[str, list[float]] = {}
    for _ in range(replicates):
        times = np.bincount(random.integers(0, num_blocks, num_blocks), minlength=num_blocks)
        for name, value in statistic(times[place].astype(np.float64)).items():
            if value is not None:
                drawn.setdefault(name, []).append(value)
            else:
                drawn.setdefault(name, [])
    tail = (1 - level) / 2
    return {name: _interval(values, tail, replicates, num_blocks) for name, values in drawn.items()}


def weighted_metrics(probabilities: np.ndarray, labels: np.ndarray, blocks: np.ndarray | None = None) -> Statistic:
    """Return a function of block weights (B,) that gives score.metrics' values; `blocks` (N,) counts from 0; None: each window.

    Everything that weights do not change is summed here, once for all replicates: half a million windows would take a second
    or two in each.
    """
    chances, truth = np.asarray(probabilities, dtype=np.float64), np.asarray(labels) > 0.5
    place = np.arange(len(chances)) if blocks is None else blocks
    said = chances >= 0.5
    bounded = np.clip(chances, 1e-16, 1 - 1e-16)
    loss = -np.log(np.where(truth, bounded, 1 - bounded))
    parts = [said & truth, said & ~truth, ~said & ~truth, ~said & truth, loss, (chances - truth) ** 2]
    sums_6B = np.stack([np.bincount(place, weights=part) for part in parts])
    wins_BB = _wins(chances, truth, place)

    def values(weights: np.ndarray) -> dict[str, float | None]:
        true_ones, false_ones, true_zeros, false_zeros, losses, squares = (float(found) for found in sums_6B @ weights)
        ones, zeros = true_ones + false_zeros, true_zeros + false_ones
        margins = (true_ones + false_ones) * ones * zeros * (true_zeros + false_zeros)
        return {
            "accuracy": (true_ones + true_zeros) / (ones + zeros),
            "auc": float(weights @ wins_BB @ weights) / (ones * zeros) if ones and zeros else None,
            "mcc": (true_ones * true_zeros - false_ones * false_zeros) / float(np.sqrt(margins)) if margins else 0.0,
            "log_loss": losses / (ones + zeros),
            "brier": squares / (ones + zeros),
        }

    return values


def _wins(chances: np.ndarray, truth: np.ndarray, place: np.ndarray) -> np.ndarray:
    """Return (B, B): how many zeros of the second block the ones of the first are ranked above, ties counting half."""
    num_blocks = int(place.max()) + 1
    order = np.argsort(chances[truth], kind="stable")
    ones, ones_place = chances[truth][order], place[truth][order]
    zeros, zeros_place = chances[~truth], place[~truth]
    wins_BB = np.zeros((num_blocks, num_blocks))
    for block in np.unique(zeros_place):
        # From its place on, each zero is below the ones: by half among its equals, by the whole above them.
        first, above = (np.searchsorted(ones, zeros[zeros_place == block], side) for side in ("left", "right"))
        begins = np.bincount(first, minlength=len(ones) + 1) + np.bincount(above, minlength=len(ones) + 1)
        wins_BB[:, block] = np.bincount(ones_place, weights=begins[:-1].cumsum() / 2, minlength=num_blocks)
    return wins_BB


def fit_logistic(rows_NF: Tensor, labels: np.ndarray) -> Tensor:
    """Fit ridge logistic regression by Newton's method; return (F + 1,) float64 weights, the intercept last.

    The rows are scaled features. Deterministic, and exact to 1e-9 within a few steps: the loss is convex.
    """
    target_N = torch.from_numpy(np.asarray(labels, dtype=np.float64))
    size = rows_NF.shape[1] + 1
    weights = torch.zeros(size, dtype=torch.float64)
    ridge = torch.full((size,), _RIDGE, dtype=torch.float64)
    ridge[-1] = 1e-9  # the intercept is free
    for _ in range(_NEWTON_STEPS):
        gradient, curvature = -ridge * weights, torch.diag(ridge)
        for first in range(0, len(rows_NF), _CHUNK_ROWS):
            x = _with_intercept(rows_NF[first : first + _CHUNK_ROWS])
            chance = torch.sigmoid(x @ weights)
            gradient += x.T @ (target_N[first : first + _CHUNK_ROWS] - chance)
            curvature += x.T @ (x * (chance * (1 - chance))[:, None])
        step = torch.linalg.solve(curvature, gradient)
        weights = weights + step
        if float(step.abs().max()) < 1e-9:
            break
    return weights


def logistic(weights: Tensor, rows_NF: Tensor) -> np.ndarray:
    """Return the probabilities that `fit_logistic`'s weights give."""
    parts = [torch.sigmoid(_with_intercept(part) @ weights) for part in torch.split(rows_NF, _CHUNK_ROWS)]
    return np.asarray(torch.cat(parts).numpy())


def _with_intercept(rows_NF: Tensor) -> Tensor:
    return torch.nn.functional.pad(rows_NF.double(), (0, 1), value=1.0)


def _scaled(data: SymbolData, bars: np.ndarray) -> Tensor:
    """Return scaled features of the bars, held to ten deviations: one crash must not decide a linear fit."""
    rows_NF = data.rows_TF[torch.from_numpy(bars).to(data.rows_TF.device)]
    return ((rows_NF - data.mean_F) / data.std_F).clamp(-10, 10).cpu()


def _last_bars(data: SymbolData, span: str, lookback: int) -> np.ndarray:
    return np.asarray(data.starts[span].cpu().numpy() + lookback - 1)


def _last_move(close: np.ndarray, bars: np.ndarray, horizon: int) -> np.ndarray:
    """Return the sign of the move over the `horizon` bars that end at each bar: known then, unlike the label."""
    return np.asarray(np.sign(close[bars] - close[np.maximum(bars - horizon, 0)]))


def _lean(moved: np.ndarray, labels: np.ndarray) -> float:
    """Return how far from one half a forecast by the last move may lean: as far as its hit rate in training did."""
    known = moved != 0
    hit_rate = float(np.mean((moved[known] > 0) == (labels[known] > 0.5))) if known.any() else 0.5
    return min(max(abs(hit_rate - 0.5), 1e-6), 0.5 - 1e-6)


def _gain(better: float | None, worse: float | None) -> float | None:
    return None if better is None or worse is None else better - worse


def _interval(values: list[float], tail: float, replicates: int, num_blocks: int) -> Interval | None:
    if num_blocks < FEWEST_BLOCKS or len(values) * 2 < replicates:
        return None
    low, high = np.quantile(values, [tail, 1 - tail])
    return Interval(low=float(low), high=float(high))
