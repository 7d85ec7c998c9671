"""Scores and baselines of a forecast of direction. Numpy on the CPU, float64, deterministic.

Shapes: N windows, F features, B blocks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from trainer.data.read.candles import Candles
from trainer.targets.direction import Direction
from trainer.targets.scoring import RIDGE, Rows, Statistic, day_blocks, features_of, of_training, whole

order = whole


def forecast(target: Direction, outputs_NO: np.ndarray, fitted: Mapping[str, Any]) -> np.ndarray:
    """Return the probability (N,) of a higher close: 1 / (1 + exp(-logit)), without overflow."""
    return np.asarray(np.exp(-np.logaddexp(0.0, -outputs_NO[:, 0])))


def calibrate(
    target: Direction, outputs_NO: np.ndarray, labels_NK: np.ndarray, fitted: Mapping[str, Any]
) -> dict[str, Any]:
    """Return `fitted` unchanged: nothing is calibrated."""
    return dict(fitted)


def columns(
    target: Direction, outputs_NO: np.ndarray, candles: Candles, bars: np.ndarray, fitted: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """Return the columns of a prediction: the probability that the close `horizon` bars later is higher."""
    return {"probability": forecast(target, outputs_NO, fitted)}


def blocks(target: Direction, rows: Rows) -> tuple[np.ndarray, dict[str, int]]:
    """Return the block (N,) of each scored bar, and the length of a block."""
    return day_blocks(rows, target.horizon)


def baselines(target: Direction, *series: Rows) -> dict[str, np.ndarray]:
    """Return the probabilities (N,) of each baseline for the scored bars of all series, fitted on the
    training of all.

    base_rate: the share of ups in training. persistence: the last move over `horizon` bars continues;
    reversal: it reverses. Both differ from one half by as much as the last move's hit rate did in training.
    logistic: a regression on the features of each window's last bar.
    """
    labels = of_training(series)[:, 0]
    moved_train = np.concatenate(
        [_last_move(rows.candles.close, rows.train, target.horizon) for rows in series]
    )
    moved = np.concatenate([_last_move(rows.candles.close, rows.scored, target.horizon) for rows in series])
    lean = _lean(moved_train, labels)
    x_train, x_scored = features_of(series)
    return {
        "base_rate": np.full(len(moved), float(labels.mean())),
        "persistence": 0.5 + lean * moved,
        "reversal": 0.5 - lean * moved,
        "logistic": logistic(x_train, labels, x_scored),
    }


def logistic(x_train: np.ndarray, labels: np.ndarray, x_scored: np.ndarray) -> np.ndarray:
    """Return the probabilities (N,) of label 1 by a ridge logistic regression on scaled features, fitted on
    training.

    The loss is convex and the solver Newton's: exact to 1e-8 within a few steps. Uses one thread, like a
    worker.
    """
    from sklearn.linear_model import LogisticRegression  # late: importing it takes a second and 120 MB
    from threadpoolctl import threadpool_limits

    model = LogisticRegression(C=1 / RIDGE, solver="newton-cholesky", tol=1e-8)
    with threadpool_limits(1, user_api="blas"):
        model.fit(x_train.astype(np.float64), labels > 0.5)
        return np.asarray(model.predict_proba(x_scored.astype(np.float64))[:, 1])


def metrics(target: Direction, probabilities: np.ndarray, labels_NK: np.ndarray) -> dict[str, Any]:
    """Return the metrics of probabilities (N,) on windows with labels 0 and 1.

    n, accuracy (a probability >= 0.5 predicts 1), base_rate (the accuracy of always predicting the more
    frequent label), auc (by ranks, ties count half; null with one label only), mcc (0 if undefined), log_loss
    (natural), brier.
    """
    chances = np.asarray(probabilities, dtype=np.float64)
    truth = np.asarray(labels_NK, dtype=np.float64).reshape(len(chances)) > 0.5
    if not len(chances):
        raise ValueError("no window to score")
    says_up = chances >= 0.5
    share = float(np.mean(truth))
    return {
        "n": len(chances),
        "accuracy": float(np.mean(says_up == truth)),
        "base_rate": max(share, 1 - share),
        "auc": _auc(chances, truth),
        "mcc": _mcc(says_up, truth),
        "log_loss": float(np.mean(-np.log(np.where(truth, _bounded(chances), 1 - _bounded(chances))))),
        "brier": float(np.mean((chances - truth) ** 2)),
    }


def weighted(
    target: Direction, probabilities: np.ndarray, labels_NK: np.ndarray, place: np.ndarray
) -> Statistic:
    """Return a function of block weights (B,) that gives `metrics`' values; `place` (N,) is the block of each
    window.

    Sums that do not depend on weights are computed once for all replicates: with half a million windows each
    replicate would take a second or two.
    """
    chances = np.asarray(probabilities, dtype=np.float64)
    truth = np.asarray(labels_NK).reshape(len(chances)) > 0.5
    says_up = chances >= 0.5
    loss = -np.log(np.where(truth, _bounded(chances), 1 - _bounded(chances)))
    parts = [
        says_up & truth,
        says_up & ~truth,
        ~says_up & ~truth,
        ~says_up & truth,
        loss,
        (chances - truth) ** 2,
    ]
    sums_6B = np.stack([np.bincount(place, weights=part) for part in parts])
    wins_BB = _wins(chances, truth, place)

    def values(weights: np.ndarray) -> dict[str, float | None]:
        true_ones, false_ones, true_zeros, false_zeros, losses, squares = (
            float(total) for total in sums_6B @ weights
        )
        ones, zeros = true_ones + false_zeros, true_zeros + false_ones
        margins = (true_ones + false_ones) * ones * zeros * (true_zeros + false_zeros)
        return {
            "accuracy": (true_ones + true_zeros) / (ones + zeros),
            "auc": float(weights @ wins_BB @ weights) / (ones * zeros) if ones and zeros else None,
            "mcc": (true_ones * true_zeros - false_ones * false_zeros) / float(np.sqrt(margins))
            if margins
            else 0.0,
            "log_loss": losses / (ones + zeros),
            "brier": squares / (ones + zeros),
        }

    return values


def _bounded(chances: np.ndarray) -> np.ndarray:
    """Return probabilities clipped so that logarithms stay finite: a float64 sigmoid is exactly 1 from a
    logit of 37 on.
    """
    return np.asarray(np.clip(chances, 1e-16, 1 - 1e-16))


def _auc(chances: np.ndarray, truth: np.ndarray) -> float | None:
    """Return the probability that a random 1 ranks above a random 0 (Mann-Whitney), ties counting half; None
    for one label.
    """
    ones, zeros = int(truth.sum()), int((~truth).sum())
    if not ones or not zeros:
        return None
    _, place, counts = np.unique(chances, return_inverse=True, return_counts=True)
    last_rank = np.cumsum(counts)
    mean_rank = last_rank - (counts - 1) / 2
    return float((mean_rank[place][truth].sum() - ones * (ones + 1) / 2) / (ones * zeros))


def _mcc(says_up: np.ndarray, truth: np.ndarray) -> float:
    """Return Matthews' correlation coefficient, 0 if undefined."""
    true_ones, false_ones = int((says_up & truth).sum()), int((says_up & ~truth).sum())
    true_zeros, false_zeros = int((~says_up & ~truth).sum()), int((~says_up & truth).sum())
    margins = [
        true_ones + false_ones,
        true_ones + false_zeros,
        true_zeros + false_ones,
        true_zeros + false_zeros,
    ]
    if not all(margins):
        return 0.0
    return (true_ones * true_zeros - false_ones * false_zeros) / math.sqrt(math.prod(margins))


def _wins(chances: np.ndarray, truth: np.ndarray, place: np.ndarray) -> np.ndarray:
    """Return (B, B): the pairs of a 1 of the first block ranked above a 0 of the second block, ties counting
    half.
    """
    num_blocks = int(place.max()) + 1
    order = np.argsort(chances[truth], kind="stable")
    ones, ones_place = chances[truth][order], place[truth][order]
    zeros, zeros_place = chances[~truth], place[~truth]
    wins_BB = np.zeros((num_blocks, num_blocks))
    for block in np.unique(zeros_place):
        # Each zero counts half for ones equal to it, and one for ones above it.
        first, above = (
            np.searchsorted(ones, zeros[zeros_place == block], side) for side in ("left", "right")
        )
        begins = np.bincount(first, minlength=len(ones) + 1) + np.bincount(above, minlength=len(ones) + 1)
        wins_BB[:, block] = np.bincount(ones_place, weights=begins[:-1].cumsum() / 2, minlength=num_blocks)
    return wins_BB


def _last_move(close: np.ndarray, bars: np.ndarray, horizon: int) -> np.ndarray:
    """Return the sign (N,) of the move over the `horizon` bars that end at each bar."""
    return np.asarray(np.sign(close[bars] - close[np.maximum(bars - horizon, 0)]))


def _lean(moved: np.ndarray, labels: np.ndarray) -> float:
    """Return the distance from one half of a forecast by the last move: that of its hit rate in training."""
    known = moved != 0
    hit_rate = float(np.mean((moved[known] > 0) == (labels[known] > 0.5))) if known.any() else 0.5
    return min(max(abs(hit_rate - 0.5), 1e-6), 0.5 - 1e-6)
