"""Scores and baselines of probabilities of two classes, for `direction`. Numpy on the CPU, float64,
deterministic.

Shapes: N windows, M windows of one label, B bars from the first window's to the last one's,
K of them.
"""

from __future__ import annotations

import numpy as np

from trainer.targets.scoring import PerBar, Rows, correlation_per_bar

PART = 1 << 20  # bars that are looked at together


def scores_per_bar(forecast_N: np.ndarray, labels_NK: np.ndarray) -> PerBar:
    """Return the scores of probabilities of label 1, as `TargetSettings.per_bar` has them.

    accuracy (a probability >= 0.5 predicts 1), auc (ties count half; None with one label only), mcc
    (Matthews' correlation, 0 if undefined), log_loss (natural), brier.
    """
    chances = np.asarray(forecast_N, dtype=np.float64)
    truth = np.asarray(labels_NK).reshape(len(chances)) > 0.5
    says_up = chances >= 0.5
    bounded = np.clip(chances, 1e-16, 1 - 1e-16)  # a float64 sigmoid is exactly 1 from a logit of 37 on
    mcc = correlation_per_bar(says_up.astype(np.float64), truth.astype(np.float64))
    return {
        "accuracy": (says_up == truth).astype(np.float64),
        "auc": _auc_per_bar(chances, truth),
        "mcc": np.zeros(len(chances)) if mcc is None else mcc,
        "log_loss": -np.log(np.where(truth, bounded, 1 - bounded)),
        "brier": (chances - truth) ** 2,
    }


def over_ties(long_N: np.ndarray, rows: Rows, horizon: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the scored bars and the ties that follow them (K,), and whether each is up (K,): a tie, which is
    not scored, as the bar before it. Nobody knows at a bar that it will be a tie.
    """
    bars = np.arange(rows.scored[0], rows.scored[-1] + 1)
    close = rows.candles.close
    place_B = np.full(len(bars), -1)
    place_B[rows.scored - bars[0]] = np.arange(len(long_N))
    is_gap_B = (place_B < 0) & (close[bars + horizon] != close[bars])  # no forecast: a hole
    last_gap_B = np.maximum.accumulate(np.where(is_gap_B, bars, -1))
    last_scored_B = np.maximum.accumulate(np.where(place_B >= 0, bars, -1))
    kept_B = last_scored_B > last_gap_B
    return bars[kept_B], long_N[np.maximum.accumulate(place_B)[kept_B]]


def last_move(close: np.ndarray, bars: np.ndarray, horizon: int) -> np.ndarray:
    """Return the sign (N,) of the move over the `horizon` bars that end at each bar."""
    moved = np.empty(len(bars), dtype=np.int8)
    for first in range(0, len(bars), PART):
        some = bars[first : first + PART]
        moved[first : first + PART] = np.sign(close[some] - close[np.maximum(some - horizon, 0)])
    return moved


def lean(moved: np.ndarray, ups: np.ndarray) -> float:
    """Return how far from one half a forecast by the last move is: as far as its hit rate in training."""
    known = moved != 0
    hit_rate = float(np.mean((moved[known] > 0) == ups[known])) if known.any() else 0.5
    return min(max(abs(hit_rate - 0.5), 1e-6), 0.5 - 1e-6)


def _auc_per_bar(chances: np.ndarray, truth: np.ndarray) -> np.ndarray | None:
    """Return (N,) values whose mean is the area under the curve, each with its window's influence; None with
    one label only.

    A window's influence is the share of windows of the other label that it is ranked correctly against, less
    the area, by the inverse of its label's share (DeLong, DeLong and Clarke-Pearson 1988,
    https://doi.org/10.2307/2531595).
    """
    ones, zeros = np.flatnonzero(truth), np.flatnonzero(~truth)
    if not len(ones) or not len(zeros):
        return None
    ones, zeros = ones[np.argsort(chances[ones])], zeros[np.argsort(chances[zeros])]
    right_N = np.empty(len(chances))
    right_N[ones] = _share_below(chances[zeros], chances[ones])
    right_N[zeros] = 1 - _share_below(chances[ones], chances[zeros])
    area = float(right_N[truth].mean())
    shares_N = np.where(truth, truth.mean(), 1 - truth.mean())
    return np.asarray(area + (right_N - area) / shares_N)


def _share_below(others_M: np.ndarray, values_N: np.ndarray) -> np.ndarray:
    """Return for each value (N,) the share of others (M,) below it; an equal one counts half. Both are
    ascending: each value is looked for near the one before it.
    """
    below, up_to = (np.searchsorted(others_M, values_N, side) for side in ("left", "right"))
    return np.asarray((below + up_to) / 2 / len(others_M))
