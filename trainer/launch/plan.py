"""The plan of a launch: which weighed types are asked, in which order, and until when. Pure.

`--dry-run` prints the same plan that a launch executes. The types are weighed before (`weighing.weigh`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from trainer.aws.place import Place
from trainer.base.errors import BudgetError, ConfigError, UsageError
from trainer.base.strict_json import MOST_NUMBER
from trainer.job.job import Job
from trainer.job.machine import MachineSettings
from trainer.job.pieces import KINDS
from trainer.job.pieces.piece import Piece
from trainer.launch.candidates import PlanCandidate, Timed, hours
from trainer.launch.checkpoints import CheckpointCost
from trainer.launch.gpu_table import OnGpus, instead
from trainer.launch.machines import on_demand_price
from trainer.launch.preflight import Offers
from trainer.launch.spot import refuse_unlikely, within_chance
from trainer.launch.weighing import Weighed
from trainer.machines.baking import Baking, baking
from trainer.machines.instances import InstanceType
from trainer.machines.planner import dollars, three_times_slow
from trainer.machines.rates import EARLIER_RUN
from trainer.machines.storage import StorageCost, storage_cost
from trainer.runs.attempts import Rung
from trainer.runs.boot import Boots
from trainer.runs.deadline import CAUSES, REMEDIES, TimeLimit, time_limit


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """The part of a plan that a run's record takes."""

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
    checkpoints: CheckpointCost | None = None  # on the first candidate; None: the command keeps none
    gpus: tuple[OnGpus, ...] = ()  # the model on all GPUs of other types, if GPUs train it together

    @property
    def first(self) -> PlanCandidate:
        """Return the first candidate."""
        return next(candidate for candidate in self.candidates if not candidate.refused)

    @property
    def times_are(self) -> str:
        """Return the source of the candidates' times, as text."""
        if not self.first.run.is_estimated:
            kind = KINDS.get(self.pieces[0].kind)  # None: of a command from outside
            return f"not estimated: {kind.untimed if kind else 'no run has measured it'}"
        if self.first.run.rate.basis.startswith(EARLIER_RUN):
            return f"from {self.first.run.rate.basis}{', by value' if len(self.pieces) > 1 else ''}"
        by_basis: dict[str, list[str]] = {}
        for candidate in self.candidates:
            if basis := _basis_of(candidate):
                names = by_basis.setdefault(basis, [])
                names += [candidate.machine.name] if candidate.machine.name not in names else []
        if not by_basis:
            return "an estimate, not measured"
        measured = [f"{basis} for {', '.join(of)}" for basis, of in by_basis.items()]
        some = not all(map(_basis_of, self.candidates))
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
            "checkpoints": self.checkpoints.to_dict() if self.checkpoints else None,
            "gpus": [row.to_dict() for row in self.gpus],
        }


def make_plan(
    job: Job,
    weighed: Weighed,
    offers: Offers,
    *,
    subnets: Mapping[str, str],
    region: str,
    place: Place,
    cap: timedelta,
    storage: StorageCost | None,
    boots: Boots | None = None,
) -> LaunchPlan:
    """Decide the ladder and the deadline. `cap` is the template's own limit on any instance's life.

    `boots` are those that earlier runs measured.
    Raises ConfigError if nothing is offered, BudgetError if the cheapest plan exceeds the budget, if no plan
    ends before its hard stop or is likely to, UsageError for a `max_duration` beyond the cap.
    """
    machine, table = job.machine, weighed.table
    candidates = weighed.candidates
    if all(candidate.refused for candidate in candidates):
        reasons = "; ".join(
            dict.fromkeys(f"{candidate.machine.name}: {candidate.refused}" for candidate in candidates)
        )
        raise ConfigError(
            f"no instance type to launch in {region}",
            why=reasons,
            do=f"Choose another --instance, or another region.{instead(table)}",
        )
    candidates = _within_budget(candidates, machine.budget, table)
    usable = [candidate for candidate in candidates if not candidate.refused]
    run_limit = _run_limit(machine, max(one.longest_attempt(one.run) for one in usable), cap)
    on_aws = _run_limit(machine, max(one.longest_attempt(one.time) for one in usable), cap)
    by_job = bool(machine.max_duration)
    rungs = {one.pool: _rungs_of(one, one.run, offers, subnets, by_job=by_job) for one in usable}
    stops = {
        one.pool: rung_limit(
            _rungs_of(one, one.time, offers, subnets, by_job=by_job)[0],
            run=on_aws,
            budget_usd=machine.budget,
            nodes=machine.nodes,
        )
        for one in usable
    }
    if place.binding:
        candidates = _within_time(candidates, stops, on_aws, machine.budget, table)
        candidates = within_chance(candidates, stops)
    else:
        marked = _refuse_late(candidates, stops)
        marked = refuse_unlikely(marked, stops)
        candidates = _noted(candidates, marked)
    usable = [candidate for candidate in candidates if not candidate.refused]
    ladder = tuple(rung for candidate in usable for rung in rungs[candidate.pool])
    limits = [
        rung_limit(rung, run=run_limit, budget_usd=machine.budget, nodes=machine.nodes) for rung in ladder
    ]
    return LaunchPlan(
        pieces=weighed.pieces,
        candidates=candidates,
        ladder=ladder,
        run_limit=run_limit,
        hard_stop=limits[0],
        hard_stop_usd=max(
            dollars(limit.duration.total_seconds(), machine.nodes * rung.on_demand_usd_per_hour)
            for limit, rung in zip(limits, ladder, strict=True)
        ),
        budget_usd=machine.budget,
        estimated_usd=_estimated_usd(usable[0], ladder[0]),
        place=place,
        region=region,
        prices_are=offers.priced.basis,
        storage=storage or storage_cost("s3", throughput="", input_bytes=0),
        checkpoints=usable[0].checkpoints,
        baking=None if place.chip else _baking(usable[0], offers, boots or {}),
        gpus=table,
    )


def _basis_of(candidate: PlanCandidate) -> str:
    """Return where the time of a candidate's run is from, '' for an estimate."""
    if runs := candidate.run.runs:
        return f"what its last {runs} runs took"
    basis = candidate.rate.basis
    if candidate.rate.is_estimate:
        return ""
    return f"by a rate {'of yours' if basis == 'yours' else basis}"


def _baking(first: PlanCandidate, offers: Offers, boots: Boots) -> Baking:
    known = boots.get(first.machine.name, {})
    return baking(known, usd_per_hour=first.price_usd_per_hour, in_use=offers.baked)


def _estimated_usd(first: PlanCandidate, rung: Rung) -> float:
    """Return what the run itself is estimated to cost: in a rehearsal, this desk's seconds at that price."""
    if not first.run.is_estimated:
        return 0.0
    seconds = first.here.phases.seconds_p50 if first.here else first.seconds_p50
    return dollars(seconds, first.nodes * rung.price_usd_per_hour)


def _rungs_of(
    candidate: PlanCandidate, timed: Timed, offers: Offers, subnets: Mapping[str, str], *, by_job: bool
) -> tuple[Rung, ...]:
    """Return the rungs of a candidate by one of its times. `by_job`: the job names a duration.

    Then the estimate limits an attempt only if it is what earlier runs took: a guess must not end a training
    whose owner said how long it may take. The limit is never below what the profile's own rate gives.
    """
    machine, on_demand = candidate.machine, on_demand_price(candidate.machine)
    spot = offers.spot_usd_per_hour if candidate.market == "spot" else {}
    prices = {zone: spot.get((machine.name, zone), on_demand) for zone in candidate.zones}
    slow = three_times_slow(timed.seconds_slow, machine).total_seconds()
    return rungs_of_type(
        machine,
        prices,
        offers,
        subnets,
        market=candidate.market,
        default_seconds=0.0 if by_job else candidate.longest_attempt(timed).total_seconds(),
        estimate_seconds=slow if by_job and timed.runs else 0.0,
        p90_seconds=timed.phases.seconds_p90 if timed.is_estimated else 0.0,
        visits=min(timed.visits, MOST_NUMBER) if timed.is_estimated else 0.0,  # a record can be read
        predicted=timed.phases.seconds if timed.is_estimated else (),
        lost_seconds=candidate.checkpoints.lost_seconds if candidate.checkpoints else 0.0,
    )


def rungs_of_type(
    machine: InstanceType,
    price_by_zone: Mapping[str, float],
    offers: Offers,
    subnets: Mapping[str, str],
    *,
    market: str,
    default_seconds: float = 0.0,
    estimate_seconds: float = 0.0,
    p90_seconds: float = 0.0,
    visits: float = 0.0,
    predicted: tuple[float, ...] = (),
    lost_seconds: float = 0.0,
) -> tuple[Rung, ...]:
    """Return the rungs of a type, the cheapest zone first. Durations and visits are those of `Rung`."""
    return tuple(
        Rung(
            instance_type=machine.name,
            availability_zone=zone,
            subnet_id=subnets[zone],
            market=market,
            price_usd_per_hour=price,
            on_demand_usd_per_hour=on_demand_price(machine),
            launch_template_id=offers.launch_template_id,
            image_id=offers.image_id,
            vcpus=machine.vcpus,
            quota_code=machine.spot_quota_code if market == "spot" else machine.on_demand_quota_code,
            boot_seconds=machine.boot.allowance_seconds,
            default_seconds=default_seconds,
            estimate_seconds=estimate_seconds,
            p90_seconds=p90_seconds,
            visits=visits,
            predicted=predicted,
            lost_seconds=lost_seconds,
        )
        for zone, price in sorted(price_by_zone.items(), key=lambda entry: (entry[1], entry[0]))
    )


def rung_limit(rung: Rung, *, run: TimeLimit, budget_usd: float, nodes: int) -> TimeLimit:
    """Return the time limit of an attempt of so many machines on a rung that begins with the run."""
    return time_limit(
        run=run,
        budget_usd=budget_usd,
        on_demand_usd_per_hour=nodes * rung.on_demand_usd_per_hour,
        default_seconds=rung.default_seconds,
        estimate_seconds=rung.estimate_seconds,
    )


def _within_budget(
    candidates: tuple[PlanCandidate, ...], budget: float, table: Sequence[OnGpus]
) -> tuple[PlanCandidate, ...]:
    """Refuse the candidates that exceed the budget. Raises BudgetError if none is left."""
    if not budget:
        return candidates
    marked = tuple(
        replace(candidate, refused=candidate.refused or "over the budget")
        if candidate.is_estimated and candidate.dollars_p50 > budget
        else candidate
        for candidate in candidates
    )
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
    candidates: tuple[PlanCandidate, ...],
    stops: Mapping[tuple[str, str], TimeLimit],
    run_limit: TimeLimit,
    budget: float,
    table: Sequence[OnGpus],
) -> tuple[PlanCandidate, ...]:
    """Refuse the candidates that would be stopped before they are done. Raises BudgetError if none is left.

    `stops`: the time limits of an attempt, by type and market.
    """
    marked = _refuse_late(candidates, stops)
    if all(candidate.refused for candidate in marked):
        fastest = min((c for c in candidates if not c.refused), key=lambda candidate: candidate.seconds_p50)
        stop = stops[fastest.pool]
        seconds, usd = run_limit.duration.total_seconds(), budget or math.inf
        raise BudgetError(
            f"no plan ends before its hard stop of {hours(stop.duration.total_seconds())}, set by"
            f" {CAUSES[stop.cause]}",
            why=(
                f"the fastest, {fastest.machine.name}, is estimated at"
                f" {hours(fastest.seconds_p50)}{_by(fastest)}"
            ),
            do=REMEDIES[stop.cause] + instead(table, seconds=seconds, usd=usd),
        )
    return marked


def _refuse_late(
    candidates: tuple[PlanCandidate, ...], stops: Mapping[tuple[str, str], TimeLimit]
) -> tuple[PlanCandidate, ...]:
    """Refuse the candidates that would be stopped before they are done."""
    return tuple(
        candidate if candidate.refused else _over_time(candidate, stops[candidate.pool])
        for candidate in candidates
    )


def _noted(candidates: Sequence[PlanCandidate], marked: Sequence[PlanCandidate]) -> tuple[PlanCandidate, ...]:
    """Return candidates with notes of what AWS would refuse."""
    return tuple(
        replace(one, note="; ".join(filter(None, [one.note, f"AWS would skip it: {other.refused}"])))
        if other.refused and not one.refused
        else one
        for one, other in zip(candidates, marked, strict=True)
    )


def _by(candidate: PlanCandidate) -> str:
    """Return how GPUs that train one model together would do it, for an error."""
    return f": {candidate.layout}" if candidate.layout else ""


def _over_time(candidate: PlanCandidate, limit: TimeLimit) -> PlanCandidate:
    """Return the candidate, refused if its estimate lies beyond its limit."""
    stop = limit.duration.total_seconds()
    needed = candidate.time.phases.seconds_p50
    if not candidate.is_estimated or needed <= stop:
        return candidate
    late = f"needs {hours(needed)}, stopped after {hours(stop)}"
    return replace(candidate, refused=late)


def _run_limit(machine: MachineSettings, longest: timedelta, cap: timedelta) -> TimeLimit:
    """Return the run's limit: the job's max_duration, else `longest`; never more than the template's own."""
    if not machine.max_duration:
        default = TimeLimit(duration=longest, cause="default_duration")
        return min(default, TimeLimit(duration=cap, cause="cap"), key=lambda limit: limit.duration)
    wanted = machine.max_duration_or(cap)
    if wanted > cap:
        raise UsageError(
            f"machine.max_duration {machine.max_duration} is longer than the stack lets an instance live",
            why=f"its launch template ends every instance after {int(cap.total_seconds() // 60)} minutes",
            do="Shorten it, or raise the stack's max lifetime and run pulumi up.",
        )
    return TimeLimit(duration=wanted, cause="max_duration")
