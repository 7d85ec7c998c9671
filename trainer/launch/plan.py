"""The plan of a launch: one row for each candidate, reasons for refusals, and the deadline. Pure.

`--dry-run` prints the same plan that a launch executes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from trainer.aws.place import Place
from trainer.base.errors import BudgetError, ConfigError, UsageError
from trainer.job.job import Job
from trainer.job.pieces import KINDS
from trainer.job.pieces.piece import Piece
from trainer.launch.candidates import PlanCandidate, weigh
from trainer.launch.gpu_table import OnGpus, gpu_table, instead
from trainer.launch.ladder import Pools, build_ladder
from trainer.launch.machines import on_demand_price
from trainer.launch.preflight import Offers
from trainer.machines.baking import Baking, baking
from trainer.machines.planner import (
    Workload,
    dollars,
    three_times_slow,
)
from trainer.machines.rates import EARLIER_RUN, Rate
from trainer.machines.storage import StorageCost, storage_cost
from trainer.runs.boot import Boots
from trainer.runs.deadline import CAUSES, REMEDIES, TimeLimit, time_limit
from trainer.runs.record import Rung


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """What a run's record takes of a plan."""

    pieces: tuple[Piece, ...] = ()
    ladder: tuple[Rung, ...] = ()
    run_limit: TimeLimit  # of the whole run
    hard_stop_usd: float = 0.0  # the most that an attempt on any rung can cost, at on-demand prices
    budget_usd: float = 0.0
    estimated_usd: float = 0.0  # 0: not estimated
    place: Place


@dataclass(frozen=True, kw_only=True)
class LaunchPlan(RunPlan):
    """Everything decided before the first write."""

    candidates: tuple[PlanCandidate, ...]
    hard_stop: TimeLimit  # of an attempt on the first rung, by the formula that the run uses
    region: str
    prices_are: str  # the source of the prices, as text
    baking: Baking | None = None  # savings of a baked image on the first candidate, where there are images
    storage: StorageCost
    gpus: tuple[OnGpus, ...] = ()  # the model on all GPUs of other types, if GPUs train it together

    @property
    def first(self) -> PlanCandidate:
        """Return the first candidate."""
        return next(candidate for candidate in self.candidates if not candidate.refused)

    @property
    def times_are(self) -> str:
        """Return the source of the candidates' times, as text."""
        if not self.first.is_estimated:
            return f"not estimated: {KINDS[self.pieces[0].kind].untimed}"
        if self.first.rate.basis.startswith(EARLIER_RUN):
            return f"from {self.first.rate.basis}{', by value' if len(self.pieces) > 1 else ''}"
        by_basis: dict[str, list[str]] = {}
        for candidate in self.candidates:
            if not candidate.rate.is_estimate:
                by_basis.setdefault(candidate.rate.basis, []).append(candidate.machine.name)
        if not by_basis:
            return "an estimate, not measured"
        measured = [
            f"by a rate {'of yours' if basis == 'yours' else basis} for {', '.join(of)}"
            for basis, of in by_basis.items()
        ]
        some = any(candidate.rate.is_estimate for candidate in self.candidates)
        return ", ".join([*measured, "else an estimate"] if some else measured)

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as `--dry-run --json` prints it."""
        return {
            "place": self.place.name,
            "region": self.region,
            "pieces": [piece.description for piece in self.pieces],
            "candidates": [candidate.to_dict() for candidate in self.candidates],
            "rungs": [f"{rung.instance_type} {rung.market} {rung.availability_zone}" for rung in self.ladder],
            "max_duration_seconds": self.run_limit.duration.total_seconds(),
            "hard_stop": {
                "seconds": self.hard_stop.duration.total_seconds(),
                "cause": self.hard_stop.cause,
                "dollars": round(self.hard_stop_usd, 4),
            },
            "budget_usd": self.budget_usd,
            "times_are": f"rough: {self.times_are}",
            "prices_are": self.prices_are,
            "baking": self.baking.to_dict() if self.baking else None,
            "storage": self.storage.to_dict(),
            "gpus": [row.to_dict() for row in self.gpus],
        }


def make_plan(
    job: Job,
    work: Workload,
    offers: Offers,
    *,
    subnets: dict[str, str],
    region: str,
    place: Place,
    cap: timedelta,
    rates: Mapping[str, Rate] | None = None,
    storage: StorageCost | None = None,
    boots: Boots | None = None,
) -> LaunchPlan:
    """Weigh the candidates and decide the deadline. `cap` is the template's own limit on any instance's life.

    `rates` has measured rates of the job's models by type (`knowledge.known_rates`); other rates are the
    profiles'. `boots` are those that earlier runs measured.

    Raises ConfigError if nothing is offered, BudgetError if the cheapest plan exceeds the budget or no plan
    ends before its hard stop, UsageError for a `max_duration` beyond the cap.
    """
    rates_on_aws = {} if place.chip else rates or {}  # others are this machine's cores'
    asked = [] if place.chip else offers.priced.machines
    table = gpu_table(job, work, asked=asked, image_line=offers.image_line, rates=rates_on_aws)
    weighed = [
        weigh(job, work, machine, offers, place=place, rate=(rates or {}).get(machine.name))
        for machine in offers.priced.machines
    ]
    if not job.machine.instance:
        weighed.sort(key=lambda candidate: (bool(candidate.refused), candidate.dollars_p50))
    offered = [candidate for candidate in weighed if not candidate.refused]
    if not offered:
        reasons = "; ".join(f"{candidate.machine.name}: {candidate.refused}" for candidate in weighed)
        raise ConfigError(
            f"no instance type to launch in {region}",
            why=reasons,
            do=f"Choose another --instance, or another region.{instead(table)}",
        )
    candidates = _within_budget(weighed, job.machine.budget, table)
    usable = [candidate for candidate in candidates if not candidate.refused]
    run_limit = _run_limit(job, max(candidate.default_duration for candidate in usable), cap)
    if place.binding:
        candidates = _within_time(candidates, run_limit, job, table)
        usable = [candidate for candidate in candidates if not candidate.refused]
    ladder = build_ladder(
        [_pools(candidate, offers, job) for candidate in usable],
        subnets=subnets,
        launch_template_id=offers.launch_template_id,
        image_id=offers.image_id,
    )
    limits = [rung_limit(rung, run=run_limit, budget_usd=job.machine.budget) for rung in ladder]
    return LaunchPlan(
        pieces=work.pieces,
        candidates=tuple(candidates),
        ladder=ladder,
        run_limit=run_limit,
        hard_stop=limits[0],
        hard_stop_usd=max(
            dollars(limit.duration.total_seconds(), rung.on_demand_usd_per_hour)
            for limit, rung in zip(limits, ladder, strict=True)
        ),
        budget_usd=job.machine.budget,
        estimated_usd=usable[0].dollars_p50 if usable[0].is_estimated else 0.0,
        place=place,
        region=region,
        prices_are=offers.priced.basis,
        storage=storage or storage_cost("s3", throughput="", input_bytes=0),
        baking=None if place.chip else _baking(usable[0], offers, boots or {}),
        gpus=table,
    )


def _baking(first: PlanCandidate, offers: Offers, boots: Boots) -> Baking:
    known = boots.get(first.machine.name, {})
    return baking(known, usd_per_hour=first.price_usd_per_hour, in_use=offers.baked)


def rung_limit(rung: Rung, *, run: TimeLimit, budget_usd: float) -> TimeLimit:
    """Return the time limit of an attempt on a rung that begins with the run."""
    return time_limit(
        run=run,
        budget_usd=budget_usd,
        on_demand_usd_per_hour=rung.on_demand_usd_per_hour,
        default_seconds=rung.default_seconds,
        estimate_seconds=rung.estimate_seconds,
    )


def _within_budget(
    candidates: Sequence[PlanCandidate], budget: float, table: Sequence[OnGpus]
) -> list[PlanCandidate]:
    """Refuse the candidates that exceed the budget. Raises BudgetError if none is left."""
    if not budget:
        return list(candidates)
    marked = [
        (
            replace(candidate, refused=candidate.refused or "over the budget")
            if candidate.is_estimated and candidate.dollars_p50 > budget
            else candidate
        )
        for candidate in candidates
    ]
    if all(candidate.refused for candidate in marked):
        cheapest = min((c for c in candidates if not c.refused), key=lambda candidate: candidate.dollars_p50)
        enough = int(cheapest.dollars_p50 * 1000 + 1) / 1000
        raise BudgetError(
            f"a budget of ${budget:g} is too small",
            why=f"the cheapest plan, {cheapest.machine.name}, is estimated at ${enough:.3f}{_by(cheapest)}",
            do=(
                "Raise --budget, train fewer symbols or epochs, or name a cheaper"
                f" --instance.{instead(table, usd=budget)}"
            ),
        )
    return marked


def _within_time(
    candidates: Sequence[PlanCandidate], run_limit: TimeLimit, job: Job, table: Sequence[OnGpus]
) -> list[PlanCandidate]:
    """Refuse the candidates that would be stopped before they are done. Raises BudgetError if none is
    left.
    """
    marked = [_over_time(candidate, run_limit, job) for candidate in candidates]
    if all(candidate.refused for candidate in marked):
        fastest = min(
            (one for one in candidates if not one.refused), key=lambda candidate: candidate.seconds_p50
        )
        limit = _limit(fastest, run_limit, job)
        usd = job.machine.budget or math.inf
        raise BudgetError(
            f"no plan ends before its hard stop of {_hours(limit.duration.total_seconds())}, set by"
            f" {CAUSES[limit.cause]}",
            why=(
                f"the fastest, {fastest.machine.name}, is estimated at"
                f" {_hours(fastest.seconds_p50)}{_by(fastest)}"
            ),
            do=(REMEDIES[limit.cause] + instead(table, seconds=run_limit.duration.total_seconds(), usd=usd)),
        )
    return marked


def _by(candidate: PlanCandidate) -> str:
    """Return how GPUs that train one model together would do it, for an error."""
    return f": {candidate.layout}" if candidate.layout else ""


def _over_time(candidate: PlanCandidate, run_limit: TimeLimit, job: Job) -> PlanCandidate:
    """Return the candidate, refused if its estimate lies beyond its limit."""
    if candidate.refused or not candidate.is_estimated:
        return candidate
    stop = _limit(candidate, run_limit, job).duration.total_seconds()
    late = f"needs {_hours(candidate.seconds_p50)}, stopped after {_hours(stop)}"
    return replace(candidate, refused=late) if candidate.seconds_p50 > stop else candidate


def _limit(candidate: PlanCandidate, run_limit: TimeLimit, job: Job) -> TimeLimit:
    """Return the time limit of an attempt on the candidate's type."""
    return time_limit(
        run=run_limit,
        budget_usd=job.machine.budget,
        on_demand_usd_per_hour=on_demand_price(candidate.machine),
        default_seconds=_default_seconds(candidate, job),
        estimate_seconds=_estimate_seconds(candidate, job),
    )


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.0f} min"


def _default_seconds(candidate: PlanCandidate, job: Job) -> float:
    """Return the default of max_duration on a type; 0 if the job names a duration."""
    return 0.0 if job.machine.max_duration else candidate.default_duration.total_seconds()


def _estimate_seconds(candidate: PlanCandidate, job: Job) -> float:
    """Return the limit by the estimate if the job names a duration; 0 if no run has measured the estimate's
    rate.

    An unmeasured estimate is a guess, which must not end a training whose owner said how long it may take.
    """
    applies = job.machine.max_duration and candidate.rate.is_measured
    return three_times_slow(candidate.seconds_p90, candidate.machine).total_seconds() if applies else 0.0


def _run_limit(job: Job, longest: timedelta, cap: timedelta) -> TimeLimit:
    """Return the run's limit: the job's max_duration, else `longest`; never more than the template's own."""
    if not job.machine.max_duration:
        default = TimeLimit(duration=longest, cause="default_duration")
        return min(default, TimeLimit(duration=cap, cause="cap"), key=lambda limit: limit.duration)
    wanted = job.machine.max_duration_or(cap)
    if wanted > cap:
        raise UsageError(
            f"machine.max_duration {job.machine.max_duration} is longer than the stack lets an instance live",
            why=f"its launch template ends every instance after {int(cap.total_seconds() // 60)} minutes",
            do="Shorten it, or raise the stack's max lifetime and run pulumi up.",
        )
    return TimeLimit(duration=wanted, cause="max_duration")


def _pools(candidate: PlanCandidate, offers: Offers, job: Job) -> Pools:
    name, on_demand = candidate.machine.name, on_demand_price(candidate.machine)
    prices = {zone: offers.spot_usd_per_hour.get((name, zone), on_demand) for zone in candidate.zones}
    return Pools(
        machine=candidate.machine,
        market=candidate.market,
        on_demand_usd_per_hour=on_demand,
        price_by_zone=prices,
        default_seconds=_default_seconds(candidate, job),
        estimate_seconds=_estimate_seconds(candidate, job),
        p90_seconds=candidate.seconds_p90 if candidate.is_estimated else 0.0,
    )
