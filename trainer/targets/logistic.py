"""The baseline `logistic`: a ridge logistic regression, by Newton's method. Numpy on the CPU, float64,
deterministic.

Features come a block at a time, so that their number costs no memory. scikit-learn agrees within 1e-7
(`tests/trainer/targets/test_against_libraries.py`); it takes three times as long, as many copies in float64
as it makes, and two seconds to load.

Shapes: N bars, F features, C classes, W of them with weights.
"""

from __future__ import annotations

import numpy as np

from trainer.targets.scoring import RIDGE, Table, blocks_of, with_intercept

ENOUGH = 1e-10  # that the next step gains of a bar's loss: the one after it would gain its square
MOST_STEPS, MOST_HALVES = 100, 30


def logistic(x_train: Table, classes_N: np.ndarray, x_scored: Table) -> np.ndarray:
    """Return the probabilities (N, C) of the classes that training has, in ascending order, by a regression
    on scaled features, fitted on training.

    Of two classes the second has weights; of more, each. Intercepts are not penalized.
    """
    classes = np.unique(classes_N)
    places_N = np.zeros(len(classes_N), dtype=np.int8)
    for place, one in enumerate(classes):
        places_N[classes_N == one] = place
    if len(classes) == 1:
        return np.ones((len(x_scored), 1))
    weights_FW = _fitted(x_train, places_N, len(classes))
    return np.concatenate([_chances(with_intercept(x), weights_FW).T for x in blocks_of(x_scored)])


def _fitted(x_train: Table, places_N: np.ndarray, classes: int) -> np.ndarray:
    """Return the weights (F + 1, W) of the least loss: Newton's steps, halved where one would go too far."""
    weights_FW = np.zeros((next(blocks_of(x_train)).shape[1] + 1, 1 if classes == 2 else classes))
    loss, slope, curve = _derivatives(x_train, places_N, classes, weights_FW)
    for _ in range(MOST_STEPS):
        step = np.linalg.solve(curve, slope)
        before, weights = loss, weights_FW
        if float(slope @ step) / 2 <= ENOUGH * len(places_N):
            return weights - step.reshape(weights.shape, order="F")
        for _ in range(MOST_HALVES):
            weights_FW = weights - step.reshape(weights.shape, order="F")
            loss, slope, curve = _derivatives(x_train, places_N, classes, weights_FW)
            if loss <= before:
                break
            step = step / 2
    return weights_FW


def _derivatives(
    x_train: Table, places_N: np.ndarray, classes: int, weights_FW: np.ndarray
) -> tuple[float, np.ndarray, np.ndarray]:
    """Return the penalized loss of all bars, its gradient and its Hessian, by class and within it by
    feature. The products of the Hessian, half the time in float64, are float32: it decides how fast the
    steps get there, the gradient decides where.
    """
    features, free = weights_FW.shape
    penalty_F = np.full(features, RIDGE)
    penalty_F[-1] = 0.0
    loss = float((penalty_F @ weights_FW**2).sum()) / 2
    slope_WF = (penalty_F[:, None] * weights_FW).T.copy()
    curve = np.kron(np.eye(free), np.diag(penalty_F))
    if free > 1:  # what all intercepts share changes no probability: it stays zero
        curve[features - 1 :: features, features - 1 :: features] += 1.0
    by_class = curve.reshape(free, features, free, features)  # a view
    true_CN = np.arange(classes)[:, None] == places_N
    first = 0
    for block in blocks_of(x_train):
        x, true_CB = with_intercept(block), true_CN[:, first : first + len(block)]
        first += len(block)
        chances_CB = _chances(x, weights_FW)
        loss -= float(np.log(np.maximum(chances_CB[true_CB], 1e-300)).sum())
        slope_WF += (chances_CB - true_CB)[classes - free :] @ x
        chances_WB, near = chances_CB[classes - free :], x.astype(np.float32)
        for one in range(free):
            for other in range(one + 1):
                share_B = chances_WB[one] * ((one == other) - chances_WB[other])
                part = (near * share_B.astype(np.float32)[:, None]).T @ near
                by_class[one, :, other] += part
                if one != other:
                    by_class[other, :, one] += part
    return loss, slope_WF.ravel(), curve


def _chances(x: np.ndarray, weights_FW: np.ndarray) -> np.ndarray:
    """Return the probabilities (C, N) of features with their intercept."""
    scores = weights_FW.T @ x.T
    if len(scores) == 1:
        scores = np.concatenate([np.zeros_like(scores), scores])
    powers = np.exp(scores - scores.max(axis=0))
    return np.asarray(powers / powers.sum(axis=0))
