"""Parts that the scores of several targets share: rows to score, cells of bars, correlation. Numpy, float64.

Shapes: N bars to score, K label columns, F features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainer.base.text import counted
from trainer.data.read.candles import Candles
from trainer.data.timeframes import DAY
from trainer.targets.trading import FEE, SLIPPAGE

PerBar = Mapping[str, np.ndarray | None]  # metric -> values (N,) whose mean it is; None: undefined
Events = Mapping[
    str, tuple[np.ndarray, np.ndarray]
]  # event -> its chances (N,), and whether it happened (N,)
MOST_FITTED = 100_000  # bars, evenly spread, that a quantile regression learns from
QUANTILE_STEPS, TEMPERATURE_STEPS = 60, 30
PART = 1 << 22  # bars that are looked at together
BLOCK = 4096  # bars whose features are computed together: they stay in the cache of a core
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


@dataclass(frozen=True, kw_only=True)
class Holdings:
    """Shares of the money that are held in T bars of a series, each from one price to the next."""

    bars: np.ndarray  # (T,) int64, the bar of each: its time
    share: np.ndarray  # (T,) float64
    prices: np.ndarray  # (T + 1,) float64, at which is traded
    fee: float  # shares of what is traded
    slippage: float


def plain_holdings(long_N: np.ndarray, bars_N: np.ndarray, candles: Candles, ahead: int) -> Holdings:
    """Return what the plain rule of `targets/trading.py` holds: each of the bars (N,), ascending, that is up
    puts one part in `ahead` of the money to use for as many bars, from its close on.
    """
    first = int(bars_N[0])
    signal = np.zeros(int(bars_N[-1]) - first + 1)
    signal[bars_N - first] = long_N
    share_T = np.convolve(signal, np.full(ahead, 1 / ahead))
    bars = np.arange(first, first + len(share_T))
    prices = candles.close[first : first + len(share_T) + 1].astype(np.float64)
    return Holdings(bars=bars, share=share_T, prices=prices, fee=FEE, slippage=SLIPPAGE)


def of_training(series: Sequence[Rows]) -> np.ndarray:
    """Return the training labels (N, K) float64 of all series, concatenated."""
    labels = [rows.labels(rows.train) for rows in series]
    return np.concatenate(labels) if len(labels) > 1 else labels[0]  # of a long series a copy is large


def num_scored(series: Sequence[Rows]) -> int:
    """Return the number of bars to score of all series."""
    return sum(len(rows.scored) for rows in series)


@dataclass(frozen=True, kw_only=True)
class Features:
    """The scaled features (N, F) of bars of several series, computed a block at a time."""

    parts: tuple[tuple[Callable[[np.ndarray], np.ndarray], np.ndarray], ...]  # `Rows.features`, and rows

    def __len__(self) -> int:
        return sum(len(bars) for _, bars in self.parts)

    def blocks(self) -> Iterator[np.ndarray]:
        """Yield the features (B, F) float32 of the bars in their order."""
        for features, bars in self.parts:
            for first in range(0, len(bars), BLOCK):
                yield features(bars[first : first + BLOCK])

    def take(self, places: np.ndarray) -> np.ndarray:
        """Return the features (M, F) of some of the bars, by their places (M,), ascending."""
        ends = np.cumsum([len(bars) for _, bars in self.parts])
        by_part = np.split(places, np.searchsorted(places, ends[:-1]))
        begins = (0, *ends[:-1])
        both = zip(self.parts, by_part, begins, strict=True)
        return np.concatenate([features(bars[some - begin]) for (features, bars), some, begin in both])


Table = Features | np.ndarray  # features (N, F)


def blocks_of(table: Table) -> Iterator[np.ndarray]:
    """Yield features (B, F) in their order, a block at a time."""
    if isinstance(table, Features):
        return table.blocks()
    return (table[first : first + BLOCK] for first in range(0, len(table), BLOCK))


def features_of(series: Sequence[Rows]) -> tuple[Features, Features]:
    """Return the scaled features of the training bars and of the scored bars of all series, concatenated."""
    return (
        Features(parts=tuple((rows.features, rows.train) for rows in series)),
        Features(parts=tuple((rows.features, rows.scored) for rows in series)),
    )


def day_cells(rows: Rows, horizon: int) -> tuple[np.ndarray, str]:
    """Return the cell (N,) of each scored bar, and its length: a UTC day, or a longer horizon.

    Labels of neighbouring bars overlap by up to the horizon, and days differ more than minutes do: single
    bars would give far too narrow intervals.
    """
    times = rows.candles.timestamp
    begins = begins_of(times[first : first + PART] // DAY for first in range(0, len(times), PART))
    if horizon <= np.median(np.diff(begins, append=len(times))):
        return times[rows.scored] // DAY, "1 day"
    return rows.scored // horizon, counted(horizon, "bar")


def begins_of(parts: Iterable[np.ndarray]) -> np.ndarray:
    """Return the place at which each cell begins, of cells in ascending order, given in parts."""
    begins, first, last = [], 0, None
    for cells in parts:
        before = cells[:1] - 1 if last is None else last
        begins.append(first + np.flatnonzero(np.diff(cells, prepend=before)))
        first, last = first + len(cells), cells[-1:]
    return np.concatenate(begins)


def correlation_per_bar(x_N: np.ndarray, y_N: np.ndarray) -> np.ndarray | None:
    """Return (N,) values whose mean is the correlation of x and y, each with its bar's influence on it; None
    if either is constant, but for rounding.
    """
    if any(each_N.std() <= 1e-12 * np.abs(each_N).max() for each_N in (x_N, y_N)):
        return None
    x_N, y_N = ((each_N - each_N.mean()) / each_N.std() for each_N in (x_N, y_N))
    correlation = float(x_N @ y_N) / len(x_N)
    return np.asarray(correlation + x_N * y_N - correlation / 2 * (x_N**2 + y_N**2))


def linear_quantile(x_train: Table, labels_N: np.ndarray, x_scored: Table, level: float) -> np.ndarray:
    """Return the forecasts (N,) of a quantile by a linear regression on scaled features, fitted on training.

    Least squares again and again, weighted by how far each label was missed: majorization of the pinball loss
    (Hunter and Lange 2000, https://doi.org/10.1080/10618600.2000.10474866), smoothed by a thousandth of a
    deviation.
    """
    some = np.arange(0, len(labels_N), 1 + len(labels_N) // MOST_FITTED)
    x, labels = (
        with_intercept(x_train.take(some) if isinstance(x_train, Features) else x_train[some]),
        labels_N[some],
    )
    smooth = 1e-3 * (float(labels.std()) or 1.0)
    weights = np.linalg.lstsq(x, labels, rcond=None)[0]
    for _ in range(QUANTILE_STEPS):
        inverse = 1 / (smooth + np.abs(labels - x @ weights))
        ridge = np.full(x.shape[1], 1e-9 * float(inverse.sum()))
        pull = (x * inverse[:, None]).T @ labels + (2 * level - 1) * x.sum(axis=0)
        weights = np.linalg.solve((x * inverse[:, None]).T @ x + np.diag(ridge), pull)
    return _products(x_scored, weights)


def temperature(logits_NC: np.ndarray, classes_N: np.ndarray) -> float:
    """Return the temperature that logits are divided by for the least log loss, between 1/8 and 8.

    The loss is convex in its inverse, which Newton's steps find (Guo, Pleiss, Sun and Weinberger 2017,
    https://arxiv.org/abs/1706.04599).
    """
    scale, rows = 1.0, np.arange(len(logits_NC))
    for _ in range(TEMPERATURE_STEPS):
        powers = np.exp(scale * (logits_NC - logits_NC.max(axis=1, keepdims=True)))
        chances = powers / powers.sum(axis=1, keepdims=True)
        means = (chances * logits_NC).sum(axis=1)
        slope = float((means - logits_NC[rows, classes_N]).mean())
        curve = float(((chances * logits_NC**2).sum(axis=1) - means**2).mean())
        if curve <= 1e-12:
            break
        before, scale = scale, min(max(scale - min(max(slope / curve, -scale / 2), scale), 1 / 8), 8.0)
        if abs(scale - before) <= 1e-12 * before:
            break
    return 1 / scale


def linear(x_train: Table, labels: np.ndarray, x_scored: Table) -> np.ndarray:
    """Return the forecasts (N,) of a ridge regression on scaled features, fitted on training, for the scored
    bars.
    """
    both, pull, first = np.zeros(()), np.zeros(()), 0
    for block in blocks_of(x_train):
        x = with_intercept(block)
        both, pull = both + x.T @ x, pull + x.T @ labels[first : first + len(x)]
        first += len(x)
    ridge = np.full(len(pull), RIDGE)
    ridge[-1] = 1e-9  # the intercept is not penalized
    return _products(x_scored, np.linalg.solve(both + np.diag(ridge), pull))


def _products(table: Table, weights: np.ndarray) -> np.ndarray:
    return np.concatenate([with_intercept(block) @ weights for block in blocks_of(table)])


def with_intercept(columns: np.ndarray) -> np.ndarray:
    """Return columns (N, F) with a column of ones after them, float64."""
    made = np.empty((len(columns), columns.shape[1] + 1))
    made[:, :-1], made[:, -1] = columns, 1.0
    return made
