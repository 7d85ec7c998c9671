"""Decide whether a scheduled run may begin: pause, overlap and the month's budget. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from trainer.base.errors import BudgetError, ConfigError, Interrupted, TrainerError
from trainer.base.instants import iso
from trainer.retrains.entries import ScheduledRun
from trainer.retrains.published import PublishedRetrain
from trainer.retrains.schedule import RetrainSchedule

# A desk's clock may be ahead. EventBridge tries a call for an hour, and Lambda each for ten minutes more.
MOST_AHEAD, MOST_LATE = timedelta(minutes=5), timedelta(hours=2)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Decision about a scheduled time; `error` is the reason if it does not begin."""

    step: Literal["begin", "wait", "skip", "refuse"]
    error: TrainerError | None = None


def refuse_untimely(name: str, scheduled_at: datetime, now: datetime) -> None:
    """Raise ConfigError for a scheduled time that no schedule can have called just now.

    A later time would use that time up, an earlier one would count towards a month that is over.
    """
    if -MOST_LATE <= scheduled_at - now <= MOST_AHEAD:
        return
    side, most = ("ahead", "5 minutes") if scheduled_at > now else ("back", "2 hours")
    raise ConfigError(
        f"retrain {name} was called for {iso(scheduled_at)}, which is not now",
        why=f"it is {iso(now.replace(microsecond=0))}, and a scheduled time lies {most} {side} at most",
        do="mayfly retrains run calls it for the present time; check the clock of the desk that called.",
    )


def decide(
    entry: ScheduledRun,
    schedule: RetrainSchedule | None,
    published: PublishedRetrain | None,
    others: Iterable[ScheduledRun],
    now: datetime,
) -> Verdict:
    """Return whether a scheduled time begins. `others` are the retrain's other entries."""
    name = entry.retrain
    if schedule is None:
        do = "Add it to the stack's setting `retrains` and run pulumi up, or delete its schedule."
        return Verdict(step="refuse", error=ConfigError(f"the stack has no retrain {name}", do=do))
    if published is None:
        do = f"Publish it: mayfly retrains publish {name} --job FILE."
        return Verdict(step="refuse", error=ConfigError(f"retrain {name} was never published", do=do))
    if published.paused:
        do = f"Resume it: mayfly retrains pause {name} --off."
        return Verdict(step="skip", error=Interrupted(f"retrain {name} is paused", do=do))
    before = [one for one in others if one.is_open and one.scheduled_at < entry.scheduled_at]
    if not before:
        return Verdict(step="begin")
    running = f"the run of {iso(before[-1].scheduled_at)} has not ended"
    do = "Give it less to do, or more time between two runs."
    if schedule.overlap == "skip" or now >= next(schedule.times(entry.scheduled_at)):
        rule = (
            "overlap is skip"
            if schedule.overlap == "skip"
            else "a run waits until the next scheduled time at most"
        )
        return Verdict(step="skip", error=Interrupted(f"{running}, so this one was skipped", why=rule, do=do))
    return Verdict(step="wait", error=Interrupted(f"{running}, so this one waits for it"))


def spent_in_month(schedule: RetrainSchedule, entry: ScheduledRun, others: Iterable[ScheduledRun]) -> float:
    """Return the dollars of the entry's calendar month: receipts' high bounds, and the most that open runs
    may cost.
    """
    same = [one for one in others if schedule.same_month(one.scheduled_at, entry.scheduled_at)]
    return sum(one.most_usd if one.is_open else one.spent_usd for one in same)


def refuse_beyond_month(
    schedule: RetrainSchedule, entry: ScheduledRun, others: Iterable[ScheduledRun], most: float
) -> None:
    """Raise BudgetError if a run that may cost `most` dollars exceeds what is left of its month."""
    spent = spent_in_month(schedule, entry, others)
    if most > schedule.budget_month - spent:
        why = (
            f"${spent:.2f} of ${schedule.budget_month:.2f} are spent or reserved, and it may cost ${most:.2f}"
        )
        do = "Raise budget_month of the stack's setting `retrains`, or lower its budget."
        raise BudgetError(
            f"the month's budget of retrain {schedule.name} is too small for this run", why=why, do=do
        )
