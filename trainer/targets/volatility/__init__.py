"""Volatility: the log of the realized volatility over the next `horizon_sessions` sessions. One output,
scaled.

In units of the log return over the whole horizon, not annualized. Realized volatility after Andersen and
Bollerslev 1998.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from trainer.base.settings import LOWER, Column, Metric, TargetSettings, setting

MAX_HORIZON_SESSIONS = 21  # a month of an exchange


@dataclass(frozen=True, kw_only=True)
class Volatility(TargetSettings):
    """Settings of the target `volatility`."""

    name = "volatility"
    metrics = (
        Metric(name="correlation", title="correlation"),
        Metric(name="qlike", title="QLIKE", better=LOWER),
        Metric(name="mse", title="MSE of logs", better=LOWER),
    )
    gains = ("correlation", "qlike")
    table = (
        Column(title="correlation (HAR)", value=("correlation",), beside=("baselines", "har", "correlation")),
        Column(title="QLIKE (HAR)", value=("qlike",), beside=("baselines", "har", "qlike")),
    )
    farther = "target.horizon_sessions"
    needs_fitted = ("label_mean", "label_std")

    horizon_sessions: int = setting(
        0,
        f"Horizon in sessions; 0: the longest (max {MAX_HORIZON_SESSIONS}) with 20 non-overlapping test"
        " labels.",
        least=0,
        most=MAX_HORIZON_SESSIONS,
    )

    def options(self) -> tuple[Self, ...]:
        if self.horizon_sessions:
            return (self,)
        return tuple(
            replace(self, horizon_sessions=sessions) for sessions in range(MAX_HORIZON_SESSIONS, 0, -1)
        )
