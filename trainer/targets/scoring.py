"""Parts that the scores of several targets share: rows to score, cells of bars, correlation. Numpy, float64.

Shapes: N bars to score, K label columns, F features.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainer.base.text import counted
from trainer.data.read.candles import Candles
from trainer.data.timeframes import DAY

PerBar = Mapping[str, np.ndarray | None]  # metric -> values (N,) whose mean it is; None: undefined
RIDGE = 1.0  # penalty on scaled features: keeps weights of collinear ones finite


@dataclass(frozen=True, kw_only=True)
class Rows:
    """The bars of a span to score, and the bars of training, from which baselines learn."""

    candles: Candles
    clock: np.ndarray  # calendar.session_clock
    labels_TK: np.ndarray  # float32, unscaled
    fitted: Mapping[str, Any]
    train: np.ndarray  # rows
    scored: np.ndarray
    # Rows (N,) -> scaled features (N, F) float32, clamped to ten deviations.
    features: Callable[[np.ndarray], np.ndarray]

    def labels(self, bars: np.ndarray) -> np.ndarray:
        """Return the labels (N, K) float64 of bars."""
        return np.asarray(self.labels_TK[bars].astype(np.float64))


def of_training(series: Sequence[Rows]) -> np.ndarray:
    """Return the training labels (N, K) float64 of all series, concatenated."""
    return np.concatenate([rows.labels(rows.train) for rows in series])


def num_scored(series: Sequence[Rows]) -> int:
    """Return the number of bars to score of all series."""
    return sum(len(rows.scored) for rows in series)


def features_of(series: Sequence[Rows]) -> tuple[np.ndarray, np.ndarray]:
    """Return the scaled features (N, F) of the training bars and of the scored bars of all series,
    concatenated.
    """
    return (
        np.concatenate([rows.features(rows.train) for rows in series]),
        np.concatenate([rows.features(rows.scored) for rows in series]),
    )


def day_cells(rows: Rows, horizon: int) -> tuple[np.ndarray, str]:
    """Return the cell (N,) of each scored bar, and its length: a UTC day, or a longer horizon.

    Labels of neighbouring bars overlap by up to the horizon, and days differ more than minutes do: single
    bars would give far too narrow intervals.
    """
    times = rows.candles.timestamp
    if horizon <= np.median(np.unique(times // DAY, return_counts=True)[1]):
        return times[rows.scored] // DAY, "1 day"
    return rows.scored // horizon, counted(horizon, "bar")


def correlation_per_bar(x_N: np.ndarray, y_N: np.ndarray) -> np.ndarray | None:
    """Return (N,) values whose mean is the correlation of x and y, each with its bar's influence on it; None
    if either is constant.
    """
    x_N, y_N = x_N - x_N.mean(), y_N - y_N.mean()
    spread = float(np.sqrt((x_N @ x_N) * (y_N @ y_N))) / len(x_N)
    if spread <= 1e-12:
        return None
    x_N, y_N = x_N / x_N.std(), y_N / y_N.std()
    correlation = float(x_N @ y_N) / len(x_N)
    return np.asarray(correlation + x_N * y_N - correlation / 2 * (x_N**2 + y_N**2))


def linear(x_train: np.ndarray, labels: np.ndarray, x_scored: np.ndarray) -> np.ndarray:
    """Return the forecasts (N,) of a ridge regression on scaled features, fitted on training, for the scored
    bars.
    """
    x = with_intercept(x_train)
    ridge = np.full(x.shape[1], RIDGE)
    ridge[-1] = 1e-9  # the intercept is not penalized
    weights = np.linalg.solve(x.T @ x + np.diag(ridge), x.T @ labels)
    return np.asarray(with_intercept(x_scored) @ weights)


def with_intercept(columns: np.ndarray) -> np.ndarray:
    """Return columns (N, F) with a column of ones after them, float64."""
    return np.concatenate([columns.astype(np.float64), np.ones((len(columns), 1))], axis=1)
