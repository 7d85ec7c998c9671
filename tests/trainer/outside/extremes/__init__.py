"""A target from outside the package: the highest and the lowest close of the next bars. Two label columns,
two outputs.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainer.base.settings import LOWER, Column, Metric, TargetSettings, horizon_setting


@dataclass(frozen=True, kw_only=True)
class Extremes(TargetSettings):
    horizon: int = horizon_setting()

    label_columns = 2
    name = "extremes"
    metrics = (Metric(name="error", title="error", better=LOWER, unit="%"),)
    gains = ("error",)
    table = (Column(title="error (mean)", value=("error",), beside=("baselines", "mean", "error")),)

    @property
    def outputs(self) -> int:
        return 2

    @property
    def bars_ahead(self) -> int:
        return self.horizon
