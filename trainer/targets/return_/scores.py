"""Scores and baselines of a forecast of a return. Numpy on the CPU, float64, deterministic.

Forecasts and labels are in units of trailing volatility. Shapes: N bars.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from trainer.data.read.candles import Candles
from trainer.targets.bars import volatility_unit
from trainer.targets.return_ import Return
from trainer.targets.scoring import (
    Rows,
    Statistic,
    block_correlation,
    day_blocks,
    features_of,
    linear,
    of_training,
    plain,
    whole,
)

order = whole


def forecast(target: Return, outputs_NO: np.ndarray, fitted: Mapping[str, Any]) -> np.ndarray:
    """Return the forecast returns (N,)."""
    return outputs_NO[:, 0]


def calibrate(
    target: Return, outputs_NO: np.ndarray, labels_NK: np.ndarray, fitted: Mapping[str, Any]
) -> dict[str, Any]:
    """Return `fitted` unchanged: nothing is calibrated."""
    return dict(fitted)


def columns(
    target: Return, outputs_NO: np.ndarray, candles: Candles, bars: np.ndarray, fitted: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """Return the columns of a prediction: the log return over `horizon` bars, and the same in units of
    volatility.
    """
    forecast_N = forecast(target, outputs_NO, fitted)
    unit_T = volatility_unit(candles.close, horizon=target.horizon, span=target.volatility_bars)
    return {"log_return": forecast_N * unit_T[bars], "volatilities": forecast_N}


def blocks(target: Return, rows: Rows) -> tuple[np.ndarray, dict[str, int]]:
    """Return the block (N,) of each scored bar, and the length of a block."""
    return day_blocks(rows, target.horizon)


def baselines(target: Return, *series: Rows) -> dict[str, np.ndarray]:
    """Return the forecasts (N,) of each baseline for the scored bars of all series, fitted on the training of
    all.

    mean: the mean of training. zero: no move. linear: a ridge regression on the features of each bar.
    """
    labels = of_training(series)[:, 0]
    x_train, x_scored = features_of(series)
    return {
        "mean": np.full(len(x_scored), labels.mean()),
        "zero": np.zeros(len(x_scored)),
        "linear": linear(x_train, labels, x_scored),
    }


def metrics(target: Return, forecast_N: np.ndarray, labels_NK: np.ndarray) -> dict[str, Any]:
    """Return n, correlation (null if either is constant), mse, and hits: the share of moves with the forecast
    sign.
    """
    return plain(lambda place: weighted(target, forecast_N, labels_NK, place), len(forecast_N))


def weighted(target: Return, forecast_N: np.ndarray, labels_NK: np.ndarray, place: np.ndarray) -> Statistic:
    """Return a function of block weights (B,) that gives `metrics`' values."""
    labels = labels_NK.reshape(len(forecast_N))
    squared, moved = (labels - forecast_N) ** 2, labels != 0
    hit = moved & (np.sign(labels) == np.sign(forecast_N))
    correlation = block_correlation(forecast_N, labels, place)
    sums_4B = np.stack(
        [np.bincount(place, weights=part) for part in (np.ones(len(labels)), squared, moved, hit)]
    )

    def values(weights_B: np.ndarray) -> dict[str, float | None]:
        bars, squares, moves, hits = (float(one) for one in sums_4B @ weights_B)
        return {
            "correlation": correlation(weights_B),
            "mse": squares / bars,
            "hits": hits / moves if moves else None,
        }

    return values
