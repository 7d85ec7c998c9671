"""Barrier: the barrier that the close reaches first within `horizon` bars: upper, lower, or none. Three
outputs.

The barriers are `barrier_width` trailing volatilities (over the horizon) above and below the close. The
triple-barrier method of Lopez de Prado 2018 (Advances in Financial Machine Learning, section 3.4), on closes.

Shapes: N bars, C classes (down, none, up).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainer.base.settings import setting
from trainer.targets.target import LOWER, TEMPERATURE, Column, Metric, VolatilityUnitSettings, column

if TYPE_CHECKING:
    import numpy as np
    import torch

    from trainer.data.read.candles import Candles
    from trainer.targets.bars import Labels
    from trainer.targets.scoring import Events, PerBar, Rows

CLASSES = ("down", "none", "up")
DOWN, NONE, UP = 0.0, 1.0, 2.0
SMALLEST = 1e-16  # keeps a logarithm finite


@dataclass(frozen=True, kw_only=True)
class Barrier(VolatilityUnitSettings):
    """The target `barrier`."""

    name = "barrier"
    metrics = (
        Metric(name="accuracy", title="accuracy"),
        Metric(name="base_rate", title="base rate"),
        Metric(name="log_loss", title="log loss", better=LOWER, unit="nats"),
        Metric(name="brier", title="Brier", better=LOWER),
    )
    proper = ("log_loss", "brier")
    long_above = 0.0
    table = (
        Column(title="accuracy (base rate)", value=("accuracy",), beside=("base_rate",)),
        column("log loss", "log_loss", baseline="unconditional"),
        Column(title="Brier", value=("brier",)),
    )

    barrier_width: float = setting(
        1.0, "Distance of both barriers, in trailing volatilities over the horizon.", above=0, most=1_000
    )

    @property
    def outputs(self) -> int:
        return len(CLASSES)

    def label(self, candles: Candles, clock: np.ndarray) -> Labels:
        """Return the labels; NaN past the end, and without trailing volatility.

        A label always ends `horizon` bars later, even if a barrier is reached before: otherwise the last bars
        of a span would have labels only after fast moves.
        """
        import numpy as np

        from trainer.targets.bars import Labels, ends_after

        bars, horizon = len(candles), self.horizon
        distance, log_close = self.barrier_width * self.unit(candles), np.log(candles.close)
        labels = np.full(bars, np.nan, dtype=np.float32)
        open_ = np.flatnonzero(np.isfinite(distance[: max(0, bars - horizon)]))
        labels[open_] = NONE
        for ahead in range(1, horizon + 1):
            move = log_close[open_ + ahead] - log_close[open_]
            labels[open_[move >= distance[open_]]] = UP
            labels[open_[move <= -distance[open_]]] = DOWN
            open_ = open_[np.abs(move) < distance[open_]]
        return Labels(values_TK=labels[:, None], ends_T=ends_after(bars, horizon))

    def flaw(self, labels_NK: np.ndarray) -> tuple[str, str]:
        if labels_NK.min() != labels_NK.max():
            return "", ""
        return "labels of one class only in training", f"target.barrier_width is {self.barrier_width:g}"

    def loss(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the cross entropy (...) of three classes: outputs (..., 3), labels (..., 1) of 0, 1, 2."""
        return (outputs.logsumexp(-1, keepdim=True) - outputs.gather(-1, labels.long())).squeeze(-1)

    def combined(self, outputs_MNO: torch.Tensor) -> torch.Tensor:
        """Return the logs of the mean probabilities, (..., 3)."""
        return outputs_MNO.log_softmax(-1).logsumexp(0) - math.log(len(outputs_MNO))

    def forecast(self, outputs_NO: np.ndarray, fitted: Mapping[str, Any]) -> np.ndarray:
        """Return the probabilities (N, C) of the classes."""
        import numpy as np

        logits_NC = outputs_NO / fitted.get(TEMPERATURE, 1.0)
        powers = np.exp(logits_NC - logits_NC.max(axis=1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=1, keepdims=True))

    def calibrate(
        self, outputs_NO: np.ndarray, labels_NK: np.ndarray, fitted: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return `fitted` with the temperature of the logits."""
        import numpy as np

        from trainer.targets.scoring import temperature

        logits_NC = outputs_NO.astype(np.float64)
        return {**fitted, TEMPERATURE: temperature(logits_NC, labels_NK[:, 0].astype(np.int64))}

    def order(self, forecast_N: np.ndarray) -> np.ndarray:
        """Return the probability of up minus that of down (N,)."""
        order_N: np.ndarray = forecast_N[:, 2] - forecast_N[:, 0]
        return order_N

    def columns(
        self, outputs_NO: np.ndarray, candles: Candles, bars: np.ndarray, fitted: Mapping[str, Any]
    ) -> dict[str, np.ndarray]:
        """Return the probability of each class."""
        return dict(zip(CLASSES, self.forecast(outputs_NO, fitted).T, strict=True))

    def events(self, forecast_N: np.ndarray, labels_NK: np.ndarray) -> Events:
        """Return the chances of up and of down."""
        return {
            name: (forecast_N[:, int(place)], labels_NK[:, 0] == place)
            for name, place in (("up", UP), ("down", DOWN))
        }

    def baselines(self, *series: Rows) -> dict[str, np.ndarray]:
        """Return the probabilities (N, C) of each baseline.

        unconditional: the shares of the classes in the training of all series. logistic: a multinomial
        regression on the features of each bar. lightgbm: trees on them.
        """
        import numpy as np

        from trainer.targets.boosting import NAME, boosted
        from trainer.targets.logistic import logistic
        from trainer.targets.scoring import features_of, of_training

        labels_NK = of_training(series)
        classes_N = labels_NK[:, 0].astype(np.int64)
        x_train, x_scored = features_of(series)
        regression = np.full((len(x_scored), len(CLASSES)), SMALLEST)  # of a class that training lacks
        regression[:, np.unique(classes_N)] = logistic(x_train, classes_N, x_scored)
        trees = boosted(series, classes_N, "multiclass", num_class=len(CLASSES))
        return {
            "unconditional": np.tile(_shares(labels_NK), (len(x_scored), 1)),
            "logistic": regression,
            **({NAME: trees.scored} if trees else {}),
        }

    def scores_of(self, values: PerBar, forecast_N: np.ndarray, labels_NK: np.ndarray) -> dict[str, Any]:
        """Return the scores with base_rate, the accuracy of always predicting the most frequent class."""
        shares = _shares(labels_NK)
        return {**super().scores_of(values, forecast_N, labels_NK), "base_rate": float(shares.max())}

    def per_bar(self, forecast_N: np.ndarray, labels_NK: np.ndarray) -> PerBar:
        """Return accuracy, log_loss and brier."""
        import numpy as np

        truth = labels_NK[:, 0].astype(np.int64)
        chance = forecast_N[np.arange(len(truth)), truth]
        return {
            "accuracy": (forecast_N.argmax(axis=1) == truth).astype(np.float64),
            "log_loss": -np.log(np.maximum(chance, SMALLEST)),
            "brier": ((forecast_N - np.eye(len(CLASSES))[truth]) ** 2).sum(axis=1),
        }


def _shares(labels_NK: np.ndarray) -> np.ndarray:
    """Return the share of each class (C,)."""
    import numpy as np

    counts_C = np.bincount(labels_NK[:, 0].astype(np.int64), minlength=len(CLASSES))
    return np.asarray(counts_C / len(labels_NK))
