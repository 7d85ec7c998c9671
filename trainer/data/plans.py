"""The plan of a symbol's training, whichever family the job trains: what the data check and the trainer's survey ask for.

A fold is a model of its own: it trains on everything older than its validation and test, and its test follows that of the fold
before. One fold is the job's split, and so is the last of several.
"""

from __future__ import annotations

from typing import Any

from trainer.config import Job, with_settings
from trainer.data.candles import Candles
from trainer.data.feature_names import WARMUP
from trainer.data.labels import WindowPlan, plan_windows
from trainer.data.splits import Spans, walk_forward
from trainer.data.volatility import VolatilityPlan, plan_volatility
from trainer.errors import DataError


def plan_folds(candles: Candles, job: Job) -> tuple[WindowPlan, ...]:
    """Find what a symbol offers to each fold of the job, oldest first. Raises DataError when that is nothing, or no batch."""
    plans = _volatility_folds(candles, job) if job.model == "tcn" else _window_folds(candles, job)
    for fold, plan in enumerate(plans, 1):
        where = f"fold {fold} of {candles.symbol}" if job.folds > 1 else candles.symbol
        _refuse_large_batch(where, job, len(plan.chunks if isinstance(plan, VolatilityPlan) else plan.starts["train"]))
    return plans


def horizon_of(plan: WindowPlan) -> dict[str, Any]:
    """Return what a summary says besides of a plan whose horizon follows from the data; nothing for others."""
    if not isinstance(plan, VolatilityPlan):
        return {}
    return {"horizon_sessions": plan.horizon_sessions, "horizon_bars": plan.horizon_bars}


def _window_folds(candles: Candles, job: Job) -> tuple[WindowPlan, ...]:
    if job.folds == 1:
        return (plan_windows(candles, job),)
    folded = _fold_spans(candles, job, embargo=max(job.embargo, job.horizon))
    return tuple(plan_windows(candles, job, spans=spans) for spans in folded)


def _volatility_folds(candles: Candles, job: Job) -> tuple[WindowPlan, ...]:
    last = plan_volatility(candles, job)
    if job.folds == 1:
        return (last,)
    # The horizon is the last fold's for all: what is averaged over folds must be one thing.
    settled = with_settings(job, horizon_sessions=last.horizon_sessions)
    folded = _fold_spans(candles, job, embargo=max(job.embargo, last.horizon_bars))
    return tuple(plan_volatility(candles, settled, spans=spans) for spans in folded)


def _fold_spans(candles: Candles, job: Job, *, embargo: int) -> tuple[Spans, ...]:
    try:
        return walk_forward(
            len(candles),
            folds=job.folds,
            validation_fraction=job.validation_fraction,
            test_fraction=job.test_fraction,
            embargo=embargo,
            first=WARMUP,
        )
    except DataError as error:
        raise DataError(f"{candles.symbol}: {error.what}", why=error.why, do=error.do) from error


def _refuse_large_batch(where: str, job: Job, available: int) -> None:
    key, kind = ("batch_chunks", "chunks") if job.model == "tcn" else ("batch", "windows")
    if getattr(job, key) > available:
        raise DataError(
            f"{key} {getattr(job, key)} is larger than the {available} training {kind} of {where}",
            do=f"Set {key} to fewer{', lower chunk' if job.model == 'tcn' else ''}, or give more bars.",
        )
