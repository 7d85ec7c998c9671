"""Direction: the probability that the close `horizon` bars later is higher. One output, its logit."""

from __future__ import annotations

from dataclasses import dataclass

from trainer.base.settings import LOWER, Column, Metric, TargetSettings, horizon_setting


@dataclass(frozen=True, kw_only=True)
class Direction(TargetSettings):
    """Settings of the target `direction`."""

    name = "direction"
    metrics = (
        Metric(name="auc", title="AUC"),
        Metric(name="accuracy", title="accuracy"),
        Metric(name="base_rate", title="base rate"),
        Metric(name="mcc", title="MCC"),
        Metric(name="log_loss", title="log loss", better=LOWER, unit="nats"),
        Metric(name="brier", title="Brier", better=LOWER),
    )
    gains = ("auc", "log_loss")
    table = (
        Column(title="accuracy (base rate)", value=("accuracy",), beside=("base_rate",)),
        Column(title="AUC (logistic)", value=("auc",), beside=("baselines", "logistic", "auc")),
        Column(title="MCC", value=("mcc",)),
        Column(title="log loss", value=("log_loss",)),
        Column(title="Brier", value=("brier",)),
    )

    horizon: int = horizon_setting()

    @property
    def bars_ahead(self) -> int:
        return self.horizon
