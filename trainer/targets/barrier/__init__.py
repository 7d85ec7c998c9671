"""Barrier: the barrier that the close reaches first within `horizon` bars: upper, lower, or none. Three
outputs.

The barriers are `barrier_width` trailing volatilities (over the horizon) above and below the close. The
triple-barrier method of Lopez de Prado 2018 (Advances in Financial Machine Learning, section 3.4), on closes.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainer.base.settings import (
    LOWER,
    Column,
    Metric,
    TargetSettings,
    horizon_setting,
    setting,
    volatility_bars_setting,
)

CLASSES = ("down", "none", "up")


@dataclass(frozen=True, kw_only=True)
class Barrier(TargetSettings):
    """Settings of the target `barrier`."""

    name = "barrier"
    metrics = (
        Metric(name="accuracy", title="accuracy"),
        Metric(name="base_rate", title="base rate"),
        Metric(name="log_loss", title="log loss", better=LOWER, unit="nats"),
        Metric(name="brier", title="Brier", better=LOWER),
    )
    gains = ("accuracy", "log_loss")
    table = (
        Column(title="accuracy (base rate)", value=("accuracy",), beside=("base_rate",)),
        Column(
            title="log loss (unconditional)",
            value=("log_loss",),
            beside=("baselines", "unconditional", "log_loss"),
        ),
        Column(title="Brier", value=("brier",)),
    )

    horizon: int = horizon_setting()
    volatility_bars: int = volatility_bars_setting()
    barrier_width: float = setting(
        1.0, "Distance of both barriers, in trailing volatilities over the horizon.", above=0, most=1_000
    )

    @property
    def outputs(self) -> int:
        return len(CLASSES)

    @property
    def unit_bars(self) -> int:
        return self.volatility_bars

    @property
    def bars_ahead(self) -> int:
        return self.horizon
