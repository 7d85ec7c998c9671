"""The plan of a symbol's training, whichever family the job trains: what the data check and the trainer's survey ask for."""

from __future__ import annotations

from typing import Any

from trainer.config import Job
from trainer.data.candles import Candles
from trainer.data.labels import WindowPlan, plan_windows
from trainer.data.volatility import VolatilityPlan, plan_volatility


def plan_symbol(candles: Candles, job: Job) -> WindowPlan:
    """Find what a symbol offers to the job's model family. Raises DataError when that is nothing."""
    return plan_volatility(candles, job) if job.model == "tcn" else plan_windows(candles, job)


def horizon_of(plan: WindowPlan) -> dict[str, Any]:
    """Return what a summary says besides of a plan whose horizon follows from the data; nothing for others."""
    if not isinstance(plan, VolatilityPlan):
        return {}
    return {"horizon_sessions": plan.horizon_sessions, "horizon_bars": plan.horizon_bars}
