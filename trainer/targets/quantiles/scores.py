"""Scores, calibration and baselines of a forecast interval. Numpy on the CPU, float64, deterministic.

Forecasts and labels are in units of trailing volatility. Shapes: N bars, Q quantiles (lower, median, upper).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from trainer.data.read.candles import Candles
from trainer.targets.bars import volatility_unit
from trainer.targets.quantiles import Quantiles
from trainer.targets.scoring import (
    Rows,
    Statistic,
    day_blocks,
    num_scored,
    of_training,
    plain,
    weighted_means,
)


def forecast(target: Quantiles, outputs_NO: np.ndarray, fitted: Mapping[str, Any]) -> np.ndarray:
    """Return the quantiles (N, Q) in ascending order, with the interval widened by the calibrated shift."""
    forecast_NQ = np.sort(outputs_NO, axis=1)
    shift = fitted.get("shift", 0.0)
    forecast_NQ[:, 0] -= shift
    forecast_NQ[:, 2] += shift
    return np.sort(forecast_NQ, axis=1)  # a narrowed interval may pass its median


def order(target: Quantiles, forecast_NQ: np.ndarray) -> np.ndarray:
    """Return the median (N,), by which series are ranked."""
    return np.asarray(forecast_NQ[:, 1])


def calibrate(
    target: Quantiles, outputs_NO: np.ndarray, labels_NK: np.ndarray, fitted: Mapping[str, Any]
) -> dict[str, Any]:
    """Return `fitted` with `shift`: how far both sides move out so that the interval holds `coverage` of
    validation's labels.

    It is the ceil((N + 1) x coverage)-th smallest distance of a label outside the interval; negative if that
    is too wide.
    """
    forecast_NQ, labels = np.sort(outputs_NO, axis=1), labels_NK[:, 0]
    outside = np.sort(np.maximum(forecast_NQ[:, 0] - labels, labels - forecast_NQ[:, 2]))
    place = min(len(outside), int(np.ceil((len(outside) + 1) * target.coverage)))
    return {**fitted, "shift": float(outside[place - 1])}


def columns(
    target: Quantiles, outputs_NO: np.ndarray, candles: Candles, bars: np.ndarray, fitted: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """Return the columns of a prediction: the quantiles of the log return over `horizon` bars."""
    unit_T = volatility_unit(candles.close, horizon=target.horizon, span=target.volatility_bars)
    forecast_NQ = forecast(target, outputs_NO, fitted) * unit_T[bars, None]
    return dict(zip(("lower", "median", "upper"), forecast_NQ.T, strict=True))


def blocks(target: Quantiles, rows: Rows) -> tuple[np.ndarray, dict[str, int]]:
    """Return the block (N,) of each scored bar, and the length of a block."""
    return day_blocks(rows, target.horizon)


def baselines(target: Quantiles, *series: Rows) -> dict[str, np.ndarray]:
    """Return the quantiles (N, Q) of each baseline for the scored bars of all series.

    unconditional: the quantiles of the training labels of all series.
    """
    forecast_Q = np.quantile(of_training(series)[:, 0], target.levels)
    return {"unconditional": np.tile(forecast_Q, (num_scored(series), 1))}


def metrics(target: Quantiles, forecast_NQ: np.ndarray, labels_NK: np.ndarray) -> dict[str, Any]:
    """Return n, pinball (mean over levels), covered, interval_score and width of the interval.

    The interval score is the width plus 2 / (1 - coverage) times the distance of a label outside the interval
    (Gneiting and Raftery 2007, https://doi.org/10.1198/016214506000001437, equation 43).
    """
    return plain(lambda place: weighted(target, forecast_NQ, labels_NK, place), len(forecast_NQ))


def weighted(
    target: Quantiles, forecast_NQ: np.ndarray, labels_NK: np.ndarray, place: np.ndarray
) -> Statistic:
    """Return a function of block weights (B,) that gives `metrics`' values."""
    missed_NQ, levels = labels_NK - forecast_NQ, np.array(target.levels)
    below, above = np.maximum(-missed_NQ[:, 0], 0), np.maximum(missed_NQ[:, 2], 0)
    width = forecast_NQ[:, 2] - forecast_NQ[:, 0]
    parts = {
        "pinball": np.maximum(levels * missed_NQ, (levels - 1) * missed_NQ).mean(axis=1),
        "covered": ((below == 0) & (above == 0)).astype(np.float64),
        "interval_score": width + 2 / (1 - target.coverage) * (below + above),
        "width": width,
    }
    return weighted_means(parts, place)
