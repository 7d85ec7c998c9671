"""Ridge logistic regression on scaled features, by Newton's method: the baseline that a network has to beat."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

_RIDGE = 1.0  # on scaled features, in units of the summed log loss: enough to keep collinear returns finite
_NEWTON_STEPS = 25
_CHUNK_ROWS = 1 << 16


def fit_logistic(rows_NF: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Fit it; return (F + 1,) float64 weights, the intercept last.

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
    return np.asarray(weights.numpy())


def logistic(weights: np.ndarray, rows_NF: np.ndarray) -> np.ndarray:
    """Return the probabilities that `fit_logistic`'s weights give."""
    parts = [rows_NF[first : first + _CHUNK_ROWS] for first in range(0, len(rows_NF), _CHUNK_ROWS)]
    return np.concatenate([torch.sigmoid(_with_intercept(part) @ torch.from_numpy(weights)).numpy() for part in parts])


def _with_intercept(rows_NF: np.ndarray) -> Tensor:
    return torch.nn.functional.pad(torch.from_numpy(np.ascontiguousarray(rows_NF)).double(), (0, 1), value=1.0)
