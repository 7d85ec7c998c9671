"""Scores and baselines of a forecast of a barrier. Numpy on the CPU, float64, deterministic.

Shapes: N bars, C classes (down, none, up).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from trainer.data.read.candles import Candles
from trainer.targets.barrier import CLASSES, Barrier
from trainer.targets.scoring import (
    Rows,
    Statistic,
    day_blocks,
    num_scored,
    of_training,
    plain,
    weighted_means,
)

_SMALLEST = 1e-16  # keeps a logarithm finite


def forecast(target: Barrier, outputs_NO: np.ndarray, fitted: Mapping[str, Any]) -> np.ndarray:
    """Return the probabilities (N, C) of the classes."""
    powers = np.exp(outputs_NO - outputs_NO.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def order(target: Barrier, forecast_NC: np.ndarray) -> np.ndarray:
    """Return the probability of up minus that of down (N,), by which series are ranked."""
    return np.asarray(forecast_NC[:, 2] - forecast_NC[:, 0])


def calibrate(
    target: Barrier, outputs_NO: np.ndarray, labels_NK: np.ndarray, fitted: Mapping[str, Any]
) -> dict[str, Any]:
    """Return `fitted` unchanged: nothing is calibrated."""
    return dict(fitted)


def columns(
    target: Barrier, outputs_NO: np.ndarray, candles: Candles, bars: np.ndarray, fitted: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """Return the columns of a prediction: the probability of each class."""
    return dict(zip(CLASSES, forecast(target, outputs_NO, fitted).T, strict=True))


def blocks(target: Barrier, rows: Rows) -> tuple[np.ndarray, dict[str, int]]:
    """Return the block (N,) of each scored bar, and the length of a block."""
    return day_blocks(rows, target.horizon)


def baselines(target: Barrier, *series: Rows) -> dict[str, np.ndarray]:
    """Return the probabilities (N, C) of each baseline for the scored bars of all series.

    unconditional: the shares of the classes in the training of all series.
    """
    counts_C = np.bincount(of_training(series)[:, 0].astype(np.int64), minlength=len(CLASSES))
    return {"unconditional": np.tile(counts_C / counts_C.sum(), (num_scored(series), 1))}


def metrics(target: Barrier, forecast_NC: np.ndarray, labels_NK: np.ndarray) -> dict[str, Any]:
    """Return n, accuracy, base_rate (the accuracy of always predicting the most frequent class), log_loss and
    brier.
    """
    shares_C = np.bincount(labels_NK[:, 0].astype(np.int64), minlength=len(CLASSES)) / len(labels_NK)
    values = plain(lambda place: weighted(target, forecast_NC, labels_NK, place), len(forecast_NC))
    return {**values, "base_rate": float(shares_C.max())}


def weighted(target: Barrier, forecast_NC: np.ndarray, labels_NK: np.ndarray, place: np.ndarray) -> Statistic:
    """Return a function of block weights (B,) that gives `metrics`' values, without the base rate."""
    truth = labels_NK[:, 0].astype(np.int64)
    chance = forecast_NC[np.arange(len(truth)), truth]
    parts = {
        "accuracy": (forecast_NC.argmax(axis=1) == truth).astype(np.float64),
        "log_loss": -np.log(np.maximum(chance, _SMALLEST)),
        "brier": ((forecast_NC - np.eye(len(CLASSES))[truth]) ** 2).sum(axis=1),
    }
    return weighted_means(parts, place)
