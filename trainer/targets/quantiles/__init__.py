"""Quantiles: an interval and a median of the return over the next `horizon` bars, in units of trailing
volatility.

Three outputs: the lower quantile, the median, the upper one. The interval is shifted on validation until it
reaches its nominal coverage there (conformalized quantile regression: Romano, Patterson, Candes 2019,
https://arxiv.org/abs/1905.03222).
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


@dataclass(frozen=True, kw_only=True)
class Quantiles(TargetSettings):
    """The settings of quantiles."""

    name = "quantiles"
    metrics = (
        Metric(name="pinball", title="pinball loss", better=LOWER, unit="volatilities"),
        Metric(name="covered", title="coverage", unit="share"),
        Metric(name="interval_score", title="interval score", better=LOWER, unit="volatilities"),
        Metric(name="width", title="width", better=LOWER, unit="volatilities"),
    )
    gains = ("pinball", "interval_score")
    table = (
        Column(
            title="pinball loss (unconditional)",
            value=("pinball",),
            beside=("baselines", "unconditional", "pinball"),
        ),
        Column(title="coverage", value=("covered",)),
        Column(
            title="interval score (unconditional)",
            value=("interval_score",),
            beside=("baselines", "unconditional", "interval_score"),
        ),
    )

    horizon: int = horizon_setting()
    volatility_bars: int = volatility_bars_setting()
    coverage: float = setting(0.8, "Share of outcomes inside the interval, such as 0.8.", above=0, below=1)

    @property
    def levels(self) -> tuple[float, float, float]:
        """Return the levels of the three quantiles."""
        return (1 - self.coverage) / 2, 0.5, (1 + self.coverage) / 2

    @property
    def outputs(self) -> int:
        return 3

    @property
    def unit_bars(self) -> int:
        return self.volatility_bars

    @property
    def bars_ahead(self) -> int:
        return self.horizon
