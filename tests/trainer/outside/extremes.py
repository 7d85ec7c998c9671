"""A target from outside the package: the highest and the lowest close of the next bars, in per cent of the
close. Two label columns, two outputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from trainer.data.read.candles import Candles
from trainer.targets.bars import Labels, ends_after
from trainer.targets.scoring import PerBar, Rows
from trainer.targets.target import LOWER, Column, HorizonSettings, Metric


@dataclass(frozen=True, kw_only=True)
class Extremes(HorizonSettings):
    label_columns = 2
    name = "extremes"
    metrics = (Metric(name="error", title="error", better=LOWER, unit="%"),)
    proper = ("error",)
    table = (Column(title="error (mean)", value=("error",), beside=("baselines", "mean", "error")),)

    @property
    def outputs(self) -> int:
        return 2

    def label(self, candles: Candles, clock: np.ndarray) -> Labels:
        close, horizon = candles.close, self.horizon
        values_TK = np.full((len(close), 2), np.nan, dtype=np.float32)
        ahead = np.stack([close[1 + step : len(close) - horizon + 1 + step] for step in range(horizon)])
        now = close[: len(close) - horizon]
        values_TK[: len(now)] = 100 * (np.stack([ahead.max(0), ahead.min(0)], axis=1) / now[:, None] - 1)
        return Labels(values_TK=values_TK, ends_T=ends_after(len(close), horizon))

    def loss(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return (outputs - labels).abs().sum(-1)

    def columns(
        self, outputs_NO: np.ndarray, candles: Candles, bars: np.ndarray, fitted: Mapping[str, Any]
    ) -> dict[str, np.ndarray]:
        return {"highest": outputs_NO[:, 0], "lowest": outputs_NO[:, 1]}

    def baselines(self, *series: Rows) -> dict[str, np.ndarray]:
        (rows,) = series
        return {"mean": np.tile(rows.labels(rows.train).mean(axis=0), (len(rows.scored), 1))}

    def per_bar(self, forecast_N: np.ndarray, labels_NK: np.ndarray) -> PerBar:
        return {"error": np.abs(forecast_N - labels_NK).mean(axis=1)}
