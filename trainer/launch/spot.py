"""Refusals of spot before a launch: a command without checkpoints, and a run that is unlikely to end in time.
Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from trainer.base.errors import BudgetError, UsageError
from trainer.job.job import Job
from trainer.launch.candidates import PlanCandidate, hours
from trainer.launch.weighing import restart_seconds
from trainer.machines.spot import INTERRUPTIONS_PER_HOUR, chance_to_finish
from trainer.runs.deadline import CAUSES, REMEDIES, TimeLimit
from trainer.runs.recovery import MOST_LOST

LEAST_CHANCE = 0.8
MOST_LOSSES = MOST_LOST - 1  # machines that a run survives


def refuse_without_checkpoints(job: Job, *, keeps_checkpoints: bool) -> None:
    """Raise UsageError for a job that may run on spot and loses all its work with its machine, unless the job
    accepts that.
    """
    machine = job.machine
    if "spot" not in machine.market or keeps_checkpoints or machine.spot_without_checkpoints:
        return
    script = bool(job.script.command)
    why = "no file of the script names MAYFLY_CHECKPOINTS" if script else "train.checkpoint_seconds is 0"
    keep = "Write checkpoints to MAYFLY_CHECKPOINTS" if script else "Set train.checkpoint_seconds"
    raise UsageError(
        "a spot machine that is taken back would lose all of its work",
        why=f"{why}: the command keeps no checkpoints",
        do=f"{keep}, use --on-demand, or accept it: --set machine.spot_without_checkpoints=true.",
    )


def refuse_unlikely(
    candidates: tuple[PlanCandidate, ...],
    stops: Mapping[tuple[str, str], TimeLimit],
) -> tuple[PlanCandidate, ...]:
    """Refuse the spot candidates that are unlikely to end in time.

    `stops`: the time limits of the run, by type and market.
    """
    chances = _chances(candidates, stops)
    return tuple(
        replace(candidate, refused=f"ends in time with a chance of {chances[candidate.pool]:.0%} on spot")
        if chances.get(candidate.pool, 1.0) < LEAST_CHANCE
        else candidate
        for candidate in candidates
    )


def within_chance(
    candidates: tuple[PlanCandidate, ...],
    stops: Mapping[tuple[str, str], TimeLimit],
) -> tuple[PlanCandidate, ...]:
    """Refuse the spot candidates that are unlikely to end in time. Raises BudgetError if none is left."""
    marked = refuse_unlikely(candidates, stops)
    if all(candidate.refused for candidate in marked):
        chances = _chances(candidates, stops)
        best = max((one for one in candidates if not one.refused), key=lambda one: chances[one.pool])
        raise _unlikely(best, stops[best.pool], chances[best.pool])
    return marked


def _chances(
    candidates: Iterable[PlanCandidate],
    stops: Mapping[tuple[str, str], TimeLimit],
) -> dict[tuple[str, str], float]:
    return {
        candidate.pool: _chance(candidate, stops[candidate.pool])
        for candidate in candidates
        if candidate.market == "spot" and candidate.is_estimated and not candidate.refused
    }


def _chance(candidate: PlanCandidate, limit: TimeLimit) -> float:
    return chance_to_finish(
        seconds=candidate.time.phases.seconds_p50,
        limit_seconds=limit.duration.total_seconds(),
        restart_seconds=restart_seconds(candidate.machine, candidate.checkpoints),
        most_losses=MOST_LOSSES,
        keeps_checkpoints=candidate.checkpoints is not None,
        per_hour=INTERRUPTIONS_PER_HOUR * candidate.at_risk,
    )


def _unlikely(candidate: PlanCandidate, limit: TimeLimit, chance: float) -> BudgetError:
    restart = restart_seconds(candidate.machine, candidate.checkpoints)
    loss = f"{restart / 60:.0f} min" if candidate.checkpoints else "all work so far"
    needs = hours(candidate.time.phases.seconds_p50)
    per_hour = INTERRUPTIONS_PER_HOUR * candidate.at_risk
    numbers = (
        f"{candidate.machine.name} needs {needs}, and its chance to end in time is {chance:.0%}, below"
        f" {LEAST_CHANCE:.0%}. The chance assumes {per_hour:.0%} interruptions an hour, each of which costs"
        f" {loss}; a run survives {MOST_LOSSES}"
    )
    stop = f"{hours(limit.duration.total_seconds())}, set by {CAUSES[limit.cause]}"
    do = f"Launch with --on-demand. {REMEDIES[limit.cause]}"
    return BudgetError(f"no spot plan is likely to end before its hard stop of {stop}", why=numbers, do=do)
