"""Return: the log return over the next `horizon` bars, in units of trailing volatility over the horizon. One
output.

The label at bar t uses closes from t - volatility_bars to t + horizon.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainer.base.settings import setting
from trainer.targets.target import LOWER, Column, Metric, VolatilityUnitSettings, column

if TYPE_CHECKING:
    import numpy as np
    import torch

    from trainer.data.read.candles import Candles
    from trainer.targets.bars import Labels
    from trainer.targets.scoring import PerBar, Rows


@dataclass(frozen=True, kw_only=True)
class Return(VolatilityUnitSettings):
    """The target `return`."""

    name = "return"
    metrics = (
        Metric(name="correlation", title="correlation"),
        Metric(name="mse", title="MSE", better=LOWER, unit="squared volatilities"),
        Metric(name="hits", title="sign hits"),
    )
    proper = ("mse",)
    long_above = 0.0
    table = (
        column("correlation", "correlation", baseline="linear"),
        column("MSE", "mse", baseline="mean"),
        Column(title="sign hits", value=("hits",)),
    )

    clip: float = setting(
        10.0,
        "Training labels are clipped at so many volatilities: else a bar in a thousand has a quarter of the"
        " squared error. 0: they are not.",
        least=0,
        most=1_000_000,
    )

    def label(self, candles: Candles, clock: np.ndarray) -> Labels:
        """Return the labels; NaN past the end, and without trailing volatility."""
        from trainer.targets.bars import moves_in_volatilities

        return moves_in_volatilities(candles.close, horizon=self.horizon, span=self.volatility_bars)

    def scale(self, labels_NK: np.ndarray, fitted: Mapping[str, Any]) -> np.ndarray:
        """Return the labels (N, 1), clipped."""
        return labels_NK.clip(-self.clip, self.clip) if self.clip else labels_NK

    def loss(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the squared error (...): outputs (..., 1), labels (..., 1)."""
        return (outputs - labels).squeeze(-1).square()

    def forecast(self, outputs_NO: np.ndarray, fitted: Mapping[str, Any]) -> np.ndarray:
        return outputs_NO[:, 0]

    def columns(
        self, outputs_NO: np.ndarray, candles: Candles, bars: np.ndarray, fitted: Mapping[str, Any]
    ) -> dict[str, np.ndarray]:
        """Return the log return over `horizon` bars, and the same in units of volatility."""
        forecast_N = self.forecast(outputs_NO, fitted)
        return {"log_return": forecast_N * self.unit(candles)[bars], "volatilities": forecast_N}

    def baselines(self, *series: Rows) -> dict[str, np.ndarray]:
        """Return the forecasts (N,) of each baseline.

        mean: the mean of training. zero: no move. linear: a ridge regression on the features of each bar.
        lightgbm: trees on them, fitted to the labels that training has.
        """
        import numpy as np

        from trainer.targets.boosting import NAME, boosted
        from trainer.targets.scoring import features_of, linear, of_training

        labels = of_training(series)[:, 0]
        x_train, x_scored = features_of(series)
        trees = boosted(series, self.scale(labels, {}), "regression")
        return {
            "mean": np.full(len(x_scored), labels.mean()),
            "zero": np.zeros(len(x_scored)),
            "linear": linear(x_train, labels, x_scored),
            **({NAME: trees.scored} if trees else {}),
        }

    def per_bar(self, forecast_N: np.ndarray, labels_NK: np.ndarray) -> PerBar:
        """Return correlation (None if either is constant), mse, and hits: the share of moves whose sign was
        forecast.
        """
        import numpy as np

        from trainer.targets.scoring import correlation_per_bar

        labels = labels_NK.reshape(len(forecast_N))
        moved = labels != 0
        hit, share = moved & (np.sign(labels) == np.sign(forecast_N)), moved.mean()
        hits = float(hit.mean() / share) if share else 0.0
        return {
            "correlation": correlation_per_bar(forecast_N, labels),
            "mse": (labels - forecast_N) ** 2,
            "hits": hits + (hit - hits * moved) / share if share else None,
        }
