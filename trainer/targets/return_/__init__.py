"""Return: the log return over the next `horizon` bars, in units of trailing volatility over the horizon. One
output.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainer.base.settings import (
    LOWER,
    Column,
    Metric,
    TargetSettings,
    horizon_setting,
    volatility_bars_setting,
)


@dataclass(frozen=True, kw_only=True)
class Return(TargetSettings):
    """Settings of the target `return`."""

    name = "return"
    metrics = (
        Metric(name="correlation", title="correlation"),
        Metric(name="mse", title="MSE", better=LOWER, unit="squared volatilities"),
        Metric(name="hits", title="sign hits"),
    )
    gains = ("correlation", "mse")
    table = (
        Column(
            title="correlation (linear)",
            value=("correlation",),
            beside=("baselines", "linear", "correlation"),
        ),
        Column(title="MSE (mean)", value=("mse",), beside=("baselines", "mean", "mse")),
        Column(title="sign hits", value=("hits",)),
    )

    horizon: int = horizon_setting()
    volatility_bars: int = volatility_bars_setting()

    @property
    def unit_bars(self) -> int:
        return self.volatility_bars

    @property
    def bars_ahead(self) -> int:
        return self.horizon
