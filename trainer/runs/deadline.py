"""The one formula of a deadline: how long an attempt may last, and what limits it. Pure.

The plan prints the limit before anything is written; `runs.launching` turns it into the instant that the
instance's tag, the OS timer and the one-time schedules carry. The record keeps instant and cause, so that the
receipt prints both as they were.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

Cause = Literal["max_duration", "default_duration", "estimate", "cap", "budget", "prepare", "score"]

# As text, after "set by".
CAUSES: dict[Cause, str] = {
    "max_duration": "machine.max_duration",
    "default_duration": "the default of machine.max_duration",
    "estimate": "three times the slow estimate",
    "cap": "the stack's max lifetime",
    "budget": "the budget",
    "prepare": "the limit of prepare runs",
    "score": "the limit of score runs",
}
REMEDIES: dict[Cause, str] = {
    "max_duration": "Raise --max-duration, or train less.",
    "default_duration": "Set --max-duration, or train less.",
    "estimate": (
        "See in mayfly logs where it hung. If it was only slow, set windows_per_second in a GPU profile of"
        " yours."
    ),
    "cap": "Raise the stack's max lifetime and run pulumi up, or train less.",
    "budget": "Raise --budget, or train less.",
    "prepare": "Have the refresh script fetch less, or set a faster prepare_type and run pulumi up.",
    "score": "Set a faster prepare_type and run pulumi up, or retrain fewer models.",
}


@dataclass(frozen=True, kw_only=True)
class TimeLimit:
    """A duration from the launch on, and what limits it."""

    duration: timedelta
    cause: Cause


@dataclass(frozen=True, kw_only=True)
class Deadline:
    """An instant, and what set it."""

    at: datetime
    cause: Cause


def time_limit(
    *,
    run: TimeLimit,
    budget_usd: float,
    on_demand_usd_per_hour: float,
    default_seconds: float = 0.0,
    estimate_seconds: float = 0.0,
) -> TimeLimit:
    """Return the shortest of the run's remaining time, the budget at the worst price, and three times the
    slow estimate.

    `budget_usd` is the budget left, 0 for none. The estimate is that of the type: `default_seconds` where the
    job names no duration, `estimate_seconds` where it does and a run measured its model on the type's chip;
    the other is 0. Budgets count in whole seconds, rounded down. Of equal limits the run's own is the cause.
    """
    limits = [run]
    if default_seconds > 0:
        limits.append(TimeLimit(duration=timedelta(seconds=default_seconds), cause="default_duration"))
    if estimate_seconds > 0:
        limits.append(TimeLimit(duration=timedelta(seconds=estimate_seconds), cause="estimate"))
    if budget_usd > 0:
        seconds = int(budget_usd / on_demand_usd_per_hour * 3600)
        limits.append(TimeLimit(duration=timedelta(seconds=seconds), cause="budget"))
    return min(limits, key=lambda limit: limit.duration)


def armed_for(at: datetime) -> datetime:
    """Return the instant that a one-time schedule is armed for: the full minute at or after `at`.

    EventBridge Scheduler has a precision of 60 s and may ignore seconds (Scheduler user guide, "Schedule
    types", looked up 2026-11-24); no machine may end before its deadline.
    """
    minute = at.replace(second=0, microsecond=0)
    return minute if minute == at else minute + timedelta(minutes=1)


def deadline_from(now: datetime, limit: TimeLimit) -> Deadline:
    """Return the instant at which a limit from `now` on ends, in whole seconds, as tags and schedules have
    it.
    """
    return Deadline(at=(now + limit.duration).replace(microsecond=0), cause=limit.cause)
