"""Scores and baselines of probabilities of two classes, for `direction`. Numpy on the CPU, float64,
deterministic.

Shapes: N windows, F features, B blocks.
"""

from __future__ import annotations

import numpy as np

from trainer.targets.scoring import RIDGE, Statistic


def weighted_scores(forecast_N: np.ndarray, labels_NK: np.ndarray, block_N: np.ndarray) -> Statistic:
    """Return a function of block weights (B,) that gives the scores of probabilities of label 1.

    accuracy (a probability >= 0.5 predicts 1), auc (ties count half; None with one label only), mcc
    (Matthews' correlation, 0 if undefined), log_loss (natural), brier. `block_N` (N,) is the block of each
    window.

    Sums that do not depend on weights are computed once for all replicates: with half a million windows each
    replicate would take a second or two.
    """
    chances = np.asarray(forecast_N, dtype=np.float64)
    truth = np.asarray(labels_NK).reshape(len(chances)) > 0.5
    says_up = chances >= 0.5
    bounded = np.clip(chances, 1e-16, 1 - 1e-16)  # a float64 sigmoid is exactly 1 from a logit of 37 on
    parts = [
        says_up & truth,
        says_up & ~truth,
        ~says_up & ~truth,
        ~says_up & truth,
        -np.log(np.where(truth, bounded, 1 - bounded)),
        (chances - truth) ** 2,
    ]
    sums_6B = np.stack([np.bincount(block_N, weights=part) for part in parts])
    wins_BB = _wins(chances, truth, block_N)

    def values(weights: np.ndarray) -> dict[str, float | None]:
        true_ones, false_ones, true_zeros, false_zeros, losses, squares = (
            float(total) for total in sums_6B @ weights
        )
        ones, zeros = true_ones + false_zeros, true_zeros + false_ones
        total = ones + zeros
        margins = (true_ones + false_ones) * ones * zeros * (true_zeros + false_zeros)
        covariance = true_ones * true_zeros - false_ones * false_zeros
        return {
            "accuracy": (true_ones + true_zeros) / total,
            "auc": float(weights @ wins_BB @ weights) / (ones * zeros) if ones and zeros else None,
            "mcc": covariance / float(np.sqrt(margins)) if margins else 0.0,
            "log_loss": losses / total,
            "brier": squares / total,
        }

    return values


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


def last_move(close: np.ndarray, bars: np.ndarray, horizon: int) -> np.ndarray:
    """Return the sign (N,) of the move over the `horizon` bars that end at each bar."""
    return np.asarray(np.sign(close[bars] - close[np.maximum(bars - horizon, 0)]))


def lean(moved: np.ndarray, labels: np.ndarray) -> float:
    """Return how far from one half a forecast by the last move is: as far as its hit rate in training."""
    known = moved != 0
    hit_rate = float(np.mean((moved[known] > 0) == (labels[known] > 0.5))) if known.any() else 0.5
    return min(max(abs(hit_rate - 0.5), 1e-6), 0.5 - 1e-6)


def _wins(chances: np.ndarray, truth: np.ndarray, block_N: np.ndarray) -> np.ndarray:
    """Return (B, B): the pairs of a 1 of the first block ranked above a 0 of the second block, ties counting
    half.
    """
    num_blocks = int(block_N.max()) + 1
    order = np.argsort(chances[truth], kind="stable")
    ones, ones_block = chances[truth][order], block_N[truth][order]
    zeros, zeros_block = chances[~truth], block_N[~truth]
    wins_BB = np.zeros((num_blocks, num_blocks))
    for block in np.unique(zeros_block):
        # Each zero counts half for ones equal to it, and one for ones above it.
        first, above = (
            np.searchsorted(ones, zeros[zeros_block == block], side) for side in ("left", "right")
        )
        begins = np.bincount(first, minlength=len(ones) + 1) + np.bincount(above, minlength=len(ones) + 1)
        wins_BB[:, block] = np.bincount(ones_block, weights=begins[:-1].cumsum() / 2, minlength=num_blocks)
    return wins_BB
