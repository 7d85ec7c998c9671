"""Quantiles: an interval and a median of the return over the next `horizon` bars, in units of trailing
volatility.

Three outputs: the lower quantile, the median, the upper one. The interval is shifted on validation until it
reaches its nominal coverage there (conformalized quantile regression: Romano, Patterson, Candes 2019,
https://arxiv.org/abs/1905.03222). The label at bar t uses closes from t - volatility_bars to t + horizon.

Shapes: N bars, Q quantiles (lower, median, upper).
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
class Quantiles(VolatilityUnitSettings):
    """The target `quantiles`."""

    name = "quantiles"
    metrics = (
        Metric(name="pinball", title="pinball loss", better=LOWER, unit="volatilities"),
        Metric(name="covered", title="coverage", unit="share"),
        Metric(name="interval_score", title="interval score", better=LOWER, unit="volatilities"),
        Metric(name="width", title="width", better=LOWER, unit="volatilities"),
    )
    proper = ("pinball", "interval_score")
    long_above = 0.0
    table = (
        column("pinball loss", "pinball", baseline="unconditional"),
        Column(title="coverage", value=("covered",)),
        column("interval score", "interval_score", baseline="unconditional"),
    )

    coverage: float = setting(0.8, "Share of outcomes inside the interval, such as 0.8.", above=0, below=1)

    @property
    def levels(self) -> tuple[float, float, float]:
        """Return the levels of the three quantiles."""
        return (1 - self.coverage) / 2, 0.5, (1 + self.coverage) / 2

    @property
    def outputs(self) -> int:
        return 3

    def label(self, candles: Candles, clock: np.ndarray) -> Labels:
        """Return the labels; NaN past the end, and without trailing volatility."""
        from trainer.targets.bars import moves_in_volatilities

        return moves_in_volatilities(candles.close, horizon=self.horizon, span=self.volatility_bars)

    def loss(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the pinball loss (...), summed over the three levels: outputs (..., 3), labels (..., 1)."""
        import torch

        missed = zip(self.levels, (labels - outputs).unbind(-1), strict=True)
        each = [torch.maximum(level * part, (level - 1) * part) for level, part in missed]
        return torch.stack(each, dim=-1).sum(-1)

    def combined(self, outputs_MNO: torch.Tensor) -> torch.Tensor:
        """Return the mean of each quantile, (..., 3), in ascending order."""
        return outputs_MNO.sort(-1).values.mean(0)

    def forecast(self, outputs_NO: np.ndarray, fitted: Mapping[str, Any]) -> np.ndarray:
        """Return the quantiles (N, Q) in ascending order, with the interval widened by the calibrated
        shift.
        """
        import numpy as np

        forecast_NQ = np.sort(outputs_NO, axis=1)
        shift = fitted.get("shift", 0.0)
        forecast_NQ[:, 0] -= shift
        forecast_NQ[:, 2] += shift
        return np.sort(forecast_NQ, axis=1)  # a narrowed interval may pass its median

    def calibrate(
        self, outputs_NO: np.ndarray, labels_NK: np.ndarray, fitted: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return `fitted` with `shift`: how far both sides move out so that the interval holds `coverage` of
        validation's labels.

        It is the ceil((N + 1) x coverage)-th smallest distance of a label outside the interval; negative if
        that is too wide.
        """
        import numpy as np

        forecast_NQ, labels = np.sort(outputs_NO, axis=1), labels_NK[:, 0]
        outside = np.sort(np.maximum(forecast_NQ[:, 0] - labels, labels - forecast_NQ[:, 2]))
        place = min(len(outside), int(np.ceil((len(outside) + 1) * self.coverage)))
        return {**fitted, "shift": float(outside[place - 1])}

    def order(self, forecast_N: np.ndarray) -> np.ndarray:
        """Return the median (N,)."""
        return forecast_N[:, 1]

    def columns(
        self, outputs_NO: np.ndarray, candles: Candles, bars: np.ndarray, fitted: Mapping[str, Any]
    ) -> dict[str, np.ndarray]:
        """Return the quantiles of the log return over `horizon` bars."""
        forecast_NQ = self.forecast(outputs_NO, fitted) * self.unit(candles)[bars, None]
        return dict(zip(("lower", "median", "upper"), forecast_NQ.T, strict=True))

    def baselines(self, *series: Rows) -> dict[str, np.ndarray]:
        """Return the quantiles (N, Q) of each baseline.

        unconditional: the quantiles of the training labels of all series. linear: a quantile regression on
        the features of each bar, for each level. lightgbm: trees on them, for each level.
        """
        import numpy as np

        from trainer.targets.boosting import NAME, boosted
        from trainer.targets.scoring import features_of, linear_quantile, of_training

        labels = of_training(series)[:, 0]
        x_train, x_scored = features_of(series)
        each = [linear_quantile(x_train, labels, x_scored, level) for level in self.levels]
        trees = [boosted(series, labels, "quantile", alpha=level) for level in self.levels]
        known = [one.scored for one in trees if one is not None]
        return {
            "unconditional": np.tile(np.quantile(labels, self.levels), (len(x_scored), 1)),
            "linear": np.sort(np.stack(each, axis=1), axis=1),
            **({NAME: np.sort(np.stack(known, axis=1), axis=1)} if known else {}),
        }

    def per_bar(self, forecast_N: np.ndarray, labels_NK: np.ndarray) -> PerBar:
        """Return pinball (mean over levels), covered, interval_score and width of the interval.

        The interval score is the width plus 2 / (1 - coverage) times the distance of a label outside the
        interval (Gneiting and Raftery 2007, https://doi.org/10.1198/016214506000001437, equation 43).
        """
        import numpy as np

        missed_NQ, levels = labels_NK - forecast_N, np.array(self.levels)
        below, above = np.maximum(-missed_NQ[:, 0], 0), np.maximum(missed_NQ[:, 2], 0)
        width = forecast_N[:, 2] - forecast_N[:, 0]
        return {
            "pinball": np.maximum(levels * missed_NQ, (levels - 1) * missed_NQ).mean(axis=1),
            "covered": ((below == 0) & (above == 0)).astype(np.float64),
            "interval_score": width + 2 / (1 - self.coverage) * (below + above),
            "width": width,
        }
