"""Scores of a user's own target: its own loss, and the correlation of the first output with the first label.

A forecast is the plain outputs. The baseline is constant: the outputs with the least loss in training.

Shapes: N bars, K label columns, O outputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from trainer.data.read.candles import Candles
from trainer.targets.own import OwnTarget
from trainer.targets.own.loss import loss
from trainer.targets.scoring import Rows, Statistic, correlation, day_blocks, num_scored, of_training, plain

MOST_LABELS = 20_000  # to which the constant is fitted, evenly spread
STEPS, FIRST_RATE = 400, 0.1  # of Adam, with a rate that falls to 0: the loss need not be smooth


def forecast(target: OwnTarget, outputs_NO: np.ndarray, fitted: Mapping[str, Any]) -> np.ndarray:
    """Return the outputs (N, O)."""
    return outputs_NO


def order(target: OwnTarget, outputs_NO: np.ndarray) -> np.ndarray:
    """Return the first output (N,), by which series are ranked."""
    return np.asarray(outputs_NO[:, 0])


def calibrate(
    target: OwnTarget, outputs_NO: np.ndarray, labels_NK: np.ndarray, fitted: Mapping[str, Any]
) -> dict[str, Any]:
    """Return `fitted` unchanged: nothing is calibrated."""
    return dict(fitted)


def columns(
    target: OwnTarget, outputs_NO: np.ndarray, candles: Candles, bars: np.ndarray, fitted: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """Return the columns of a prediction: the outputs. Runs none of the user's code."""
    names = (
        [f"output_{number}" for number in range(1, outputs_NO.shape[1] + 1)]
        if outputs_NO.shape[1] > 1
        else ["output"]
    )
    return {name: outputs_NO[:, number] for number, name in enumerate(names)}


def blocks(target: OwnTarget, rows: Rows) -> tuple[np.ndarray, dict[str, int]]:
    """Return the block (N,) of each scored bar, and the length of a block."""
    return day_blocks(rows, target.horizon)


def baselines(target: OwnTarget, *series: Rows) -> dict[str, np.ndarray]:
    """Return, for each scored bar, the constant outputs (N, O) with the least loss in the training of all
    series.
    """
    labels_NK = of_training(series)
    some = labels_NK[:: 1 + len(labels_NK) // MOST_LABELS]
    return {"constant": np.tile(_constant(target, some), (num_scored(series), 1))}


def metrics(target: OwnTarget, outputs_NO: np.ndarray, labels_NK: np.ndarray) -> dict[str, Any]:
    """Return n, loss, and correlation (null if either is constant)."""
    return plain(lambda place: weighted(target, outputs_NO, labels_NK, place), len(outputs_NO))


def weighted(
    target: OwnTarget, outputs_NO: np.ndarray, labels_NK: np.ndarray, place: np.ndarray
) -> Statistic:
    """Return a function of block weights (B,) that gives `metrics`' values."""
    labels_NK = labels_NK.reshape(len(outputs_NO), -1)
    each_N = loss(
        target, torch.from_numpy(np.ascontiguousarray(outputs_NO)), torch.from_numpy(labels_NK)
    ).numpy()

    def values(weights_B: np.ndarray) -> dict[str, float | None]:
        weights = weights_B[place]
        return {
            "loss": float((weights / weights.sum()) @ each_N),
            "correlation": correlation(outputs_NO[:, 0], labels_NK[:, 0], weights),
        }

    return values


def _constant(target: OwnTarget, labels_NK: np.ndarray) -> np.ndarray:
    """Return the constant outputs (O,) float64 with the least mean loss."""
    labels = torch.from_numpy(labels_NK)
    outputs_O = torch.zeros(target.outputs, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([outputs_O], lr=FIRST_RATE)
    for step in range(STEPS):
        optimizer.param_groups[0]["lr"] = FIRST_RATE * (1 - step / STEPS)
        optimizer.zero_grad()
        loss(target, outputs_O.expand(len(labels), -1), labels).mean().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return np.asarray(outputs_O.detach().numpy())
