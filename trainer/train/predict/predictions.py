"""Results of predicting with one model for one symbol: the predictions, or the error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainer.base.errors import TrainerError
from trainer.targets.target import TargetSettings


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """Predictions of one model for one symbol, oldest bar first. Shapes: N bars."""

    model: str
    symbol: str
    bar: np.ndarray  # (N,) int64 ns UTC: the start of the last bar that the model saw
    available_at: np.ndarray  # (N,) int64 ns UTC: the end of that bar, when the prediction could be made
    columns: dict[str, np.ndarray]  # (N,) float64, by the target's columns
    synthetic: bool = False  # whether the model was trained on generated bars


@dataclass(frozen=True, kw_only=True)
class NotPredicted:
    """A model, or one symbol of it, without predictions. `absent`: the data has no bars of the symbol, or too
    few.
    """

    model: str
    symbol: str
    error: TrainerError
    absent: bool = False


@dataclass(frozen=True, kw_only=True)
class BarOutputs:
    """A model's outputs at bars of one symbol, and what its target fitted. Shapes: N bars, O outputs."""

    bars: np.ndarray  # (N,) int64 rows of the candles, ascending
    outputs_NO: np.ndarray  # float64
    fitted: Mapping[str, Any]

    def at(self, bars: np.ndarray, target: TargetSettings) -> np.ndarray:
        """Return the forecasts (M, ...) at some of its bars, in the unit of the labels."""
        places = np.searchsorted(self.bars, bars)
        return target.forecast(self.outputs_NO[places], self.fitted)
