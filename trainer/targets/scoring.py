"""Parts that the scores of several targets share: rows to score, blocks of bars, weighted means. Numpy,
float64.

Shapes: N bars to score, K label columns, B blocks, F features.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainer.data.read.candles import Candles
from trainer.data.timeframes import DAY

Statistic = Callable[[np.ndarray], Mapping[str, float | None]]  # weights of blocks (B,) -> named values
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


def day_blocks(rows: Rows, horizon: int) -> tuple[np.ndarray, dict[str, int]]:
    """Return the block (N,) of each scored bar, and the length of a block in bars: a day's, but at least the
    horizon.

    Labels of neighbouring bars overlap by up to the horizon, and days differ more than minutes do: resampling
    single bars would give far too narrow intervals.
    """
    block_bars = block_length(rows.candles.timestamp, horizon)
    return rows.scored // block_bars, {"block_bars": block_bars}


def block_length(timestamps: np.ndarray, horizon: int) -> int:
    """Return the bars of a block: the median number per UTC day that has bars, but at least the horizon."""
    return max(horizon, int(np.median(np.unique(timestamps // DAY, return_counts=True)[1])))


def weighted_means(
    parts: Mapping[str, np.ndarray], block_N: np.ndarray
) -> Callable[[np.ndarray], dict[str, float]]:
    """Return a function of block weights (B,) that gives the mean of each part (N,). `block_N` (N,) is the
    block of each bar.
    """
    sums = {name: np.bincount(block_N, weights=part) for name, part in parts.items()}
    counts_B = np.bincount(block_N).astype(np.float64)

    def values(weights_B: np.ndarray) -> dict[str, float]:
        total = float(counts_B @ weights_B)
        return {name: float(sums_B @ weights_B) / total for name, sums_B in sums.items()}

    return values


def block_correlation(
    x: np.ndarray, y: np.ndarray, block_N: np.ndarray
) -> Callable[[np.ndarray], float | None]:
    """Return a function of block weights (B,) that gives the correlation of x and y (N,); None if either is
    constant. `block_N` (N,) is the block of each bar.

    It uses sums over blocks: over hundreds of thousands of bars, each replicate would take milliseconds.
    """
    x, y = x - x.mean(), y - y.mean()  # limits cancellation below
    sums_6B = np.stack(
        [np.bincount(block_N, weights=part) for part in (np.ones(len(x)), x, y, x * x, y * y, x * y)]
    )

    def value(weights_B: np.ndarray) -> float | None:
        total, sx, sy, sxx, syy, sxy = (float(one) for one in sums_6B @ weights_B)
        mx, my = sx / total, sy / total
        spread = float(np.sqrt(max(0.0, sxx / total - mx * mx) * max(0.0, syy / total - my * my)))
        return (sxy / total - mx * my) / spread if spread > 1e-12 else None

    return value


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
