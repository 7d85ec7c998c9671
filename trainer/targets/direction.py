"""Direction: the probability that the close `horizon` bars later is higher. One output, its logit.

A label is the sign of log close[t + horizon] / close[t], as 1 and 0. It uses prices after t and close[t]
only. Scores are in `direction_scores`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainer.targets.target import LOWER, TEMPERATURE, Column, HorizonSettings, Metric

if TYPE_CHECKING:
    import numpy as np
    import torch

    from trainer.data.read.candles import Candles
    from trainer.targets.bars import Labels
    from trainer.targets.scoring import Events, Holdings, PerBar, Rows


@dataclass(frozen=True, kw_only=True)
class Direction(HorizonSettings):
    """The target `direction`."""

    name = "direction"
    metrics = (
        Metric(name="auc", title="AUC"),
        Metric(name="accuracy", title="accuracy"),
        Metric(name="base_rate", title="base rate"),
        Metric(name="mcc", title="MCC"),
        Metric(name="log_loss", title="log loss", better=LOWER, unit="nats"),
        Metric(name="brier", title="Brier", better=LOWER),
    )
    proper = ("log_loss", "brier")
    long_above = 0.5
    table = (
        Column(title="accuracy (base rate)", value=("accuracy",), beside=("base_rate",)),
        Column(title="AUC (logistic)", value=("auc",), beside=("baselines", "logistic", "auc")),
        Column(title="MCC", value=("mcc",)),
        Column(title="log loss", value=("log_loss",)),
        Column(title="Brier", value=("brier",)),
    )

    def label(self, candles: Candles, clock: np.ndarray) -> Labels:
        """Return 1 if the close is higher `horizon` bars later, 0 if it is lower, NaN for a tie and past
        the end.
        """
        import numpy as np

        from trainer.targets.bars import Labels, ends_after

        close, horizon = candles.close, self.horizon
        labels = np.full(len(close), np.nan, dtype=np.float32)
        if len(close) > horizon:
            change = close[horizon:] - close[:-horizon]  # has the sign of the log ratio
            labels[: len(change)][change > 0] = 1.0
            labels[: len(change)][change < 0] = 0.0
        return Labels(values_TK=labels[:, None], ends_T=ends_after(len(close), horizon))

    def flaw(self, labels_NK: np.ndarray) -> tuple[str, str]:
        if labels_NK.min() != labels_NK.max():
            return "", ""
        moves = "rises" if labels_NK[0, 0] else "falls"
        return "labels of one class only in training", f"every close {moves} over {self.horizon} bars"

    def loss(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the cross entropy (...) of each logit: outputs (..., 1), labels (..., 1) of 0 and 1."""
        import torch

        return torch.nn.functional.binary_cross_entropy_with_logits(
            outputs.squeeze(-1), labels.squeeze(-1), reduction="none"
        )

    def combined(self, outputs_MNO: torch.Tensor) -> torch.Tensor:
        """Return the logit of the mean probability, (..., 1)."""
        import torch

        log_up = torch.nn.functional.logsigmoid(outputs_MNO).logsumexp(0)
        return log_up - torch.nn.functional.logsigmoid(-outputs_MNO).logsumexp(0)

    def forecast(self, outputs_NO: np.ndarray, fitted: Mapping[str, Any]) -> np.ndarray:
        """Return the probability (N,) of a higher close, 1 / (1 + exp(-logit / temperature))."""
        import numpy as np

        return np.asarray(np.exp(-np.logaddexp(0.0, -outputs_NO[:, 0] / fitted.get(TEMPERATURE, 1.0))))

    def calibrate(
        self, outputs_NO: np.ndarray, labels_NK: np.ndarray, fitted: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return `fitted` with the temperature of the logits."""
        import numpy as np

        from trainer.targets.scoring import temperature

        logits_NC = np.stack([np.zeros(len(outputs_NO)), outputs_NO[:, 0]], axis=1)
        return {**fitted, TEMPERATURE: temperature(logits_NC, (labels_NK[:, 0] > 0.5).astype(np.int64))}

    def holdings(self, forecast_N: np.ndarray, rows: Rows) -> Holdings:
        """Return what the plain rule holds: at a tie, which has no label, as at the bar before it."""
        from trainer.targets.direction_scores import over_ties
        from trainer.targets.scoring import plain_holdings

        bars, long_B = over_ties(forecast_N > self.long_above, rows, self.horizon)
        return plain_holdings(long_B, bars, rows.candles, self.bars_ahead)

    def columns(
        self, outputs_NO: np.ndarray, candles: Candles, bars: np.ndarray, fitted: Mapping[str, Any]
    ) -> dict[str, np.ndarray]:
        return {"probability": self.forecast(outputs_NO, fitted)}

    def events(self, forecast_N: np.ndarray, labels_NK: np.ndarray) -> Events:
        return {"up": (forecast_N, labels_NK.reshape(len(forecast_N)) > 0.5)}

    def baselines(self, *series: Rows) -> dict[str, np.ndarray]:
        """Return the probabilities (N,) of each baseline.

        base_rate: the share of ups in training. persistence: the last move over `horizon` bars continues;
        reversal: it reverses. Both differ from one half by as much as the last move's hit rate did in
        training. logistic: a regression on the features of each window's last bar. lightgbm: trees on them.
        """
        import numpy as np

        from trainer.targets.boosting import NAME, boosted
        from trainer.targets.direction_scores import last_move, lean
        from trainer.targets.logistic import logistic
        from trainer.targets.scoring import features_of, of_training

        ups = of_training(series)[:, 0] > 0.5
        before = [last_move(rows.candles.close, rows.train, self.horizon) for rows in series]
        moved = np.concatenate([last_move(rows.candles.close, rows.scored, self.horizon) for rows in series])
        by = lean(np.concatenate(before), ups)
        x_train, x_scored = features_of(series)
        trees = boosted(series, ups, "binary")
        return {
            "base_rate": np.full(len(moved), float(ups.mean())),
            "persistence": 0.5 + by * moved,
            "reversal": 0.5 - by * moved,
            "logistic": logistic(x_train, ups, x_scored)[:, 1],
            **({NAME: trees.scored} if trees else {}),
        }

    def per_bar(self, forecast_N: np.ndarray, labels_NK: np.ndarray) -> PerBar:
        from trainer.targets.direction_scores import scores_per_bar

        return scores_per_bar(forecast_N, labels_NK)

    def scores_of(self, values: PerBar, forecast_N: np.ndarray, labels_NK: np.ndarray) -> dict[str, Any]:
        """Return the scores with base_rate, the accuracy of always predicting the more frequent label."""
        share = float((labels_NK > 0.5).mean())
        return {**super().scores_of(values, forecast_N, labels_NK), "base_rate": max(share, 1 - share)}
