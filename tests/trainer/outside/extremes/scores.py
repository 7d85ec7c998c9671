"""The scores: the mean absolute error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.trainer.outside.extremes import Extremes
from trainer.data.read.candles import Candles
from trainer.targets.scoring import Rows, Statistic, day_blocks, plain, weighted_means


def forecast(target: Extremes, outputs_NO: np.ndarray, fitted: Mapping[str, Any]) -> np.ndarray:
    return outputs_NO


def calibrate(
    target: Extremes, outputs_NO: np.ndarray, labels_NK: np.ndarray, fitted: Mapping[str, Any]
) -> dict[str, Any]:
    return dict(fitted)


def columns(
    target: Extremes, outputs_NO: np.ndarray, candles: Candles, bars: np.ndarray, fitted: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    return {"highest": outputs_NO[:, 0], "lowest": outputs_NO[:, 1]}


def blocks(target: Extremes, rows: Rows) -> tuple[np.ndarray, dict[str, int]]:
    return day_blocks(rows, target.horizon)


def baselines(target: Extremes, rows: Rows) -> dict[str, np.ndarray]:
    return {"mean": np.tile(rows.labels(rows.train).mean(axis=0), (len(rows.scored), 1))}


def metrics(target: Extremes, said: np.ndarray, labels_NK: np.ndarray) -> dict[str, Any]:
    return plain(lambda place: weighted(target, said, labels_NK, place), len(said))


def weighted(target: Extremes, said: np.ndarray, labels_NK: np.ndarray, place: np.ndarray) -> Statistic:
    return weighted_means({"error": np.abs(said - labels_NK).mean(axis=1)}, place)
