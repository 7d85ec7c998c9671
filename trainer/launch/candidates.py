"""The candidates of a plan: types on offer, each with its time, price and cost, or refused with a reason.
Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from trainer.aws.place import Place
from trainer.job.job import Job
from trainer.job.pieces.piece import Piece
from trainer.job.pieces.queue import places_on
from trainer.launch.gpu_table import OnGpus, gpu_table, on_gpus, too_large
from trainer.launch.machines import on_demand_price
from trainer.launch.preflight import Offers
from trainer.machines.compatibility import judge
from trainer.machines.instances import InstanceType
from trainer.machines.planner import (
    LONGEST_DEADLINE,
    Workload,
    default_max_duration,
    dollars,
    estimate,
)
from trainer.machines.rates import NOT_ESTIMATED, Rate

UNPROVEN = "its image is not known to support it"


@dataclass(frozen=True, kw_only=True)
class PlanCandidate:
    """One type on one market: its time and cost, or in `refused` the reason why it is not used."""

    machine: InstanceType
    market: str
    zones: tuple[str, ...]
    price_usd_per_hour: float
    seconds_p50: float
    seconds_p90: float
    dollars_p50: float
    dollars_p90: float
    # Those that deadlines follow: by the slower of the measured rate and the profile's.
    seconds_slow: float
    rate: Rate  # behind its times
    visits: float  # windows of one GPU in its training time, at that rate
    note: str = ""
    refused: str = ""
    layout: str = ""  # how its GPUs train one model together

    @property
    def pool(self) -> tuple[str, str]:
        """Return its type and its market."""
        return self.machine.name, self.market

    @property
    def is_estimated(self) -> bool:
        """Return whether its times and dollars are estimated: not for a user's own model without a trial."""
        return self.rate.basis != NOT_ESTIMATED

    @property
    def default_duration(self) -> timedelta:
        """Return the longest attempt of a job that names no duration."""
        return (
            default_max_duration(self.seconds_slow, self.machine) if self.is_estimated else LONGEST_DEADLINE
        )

    def to_dict(self) -> dict[str, Any]:
        """Return it as `--dry-run --json` prints it."""
        known = self.is_estimated
        return {
            "instance_type": self.machine.name,
            "market": self.market,
            "zones": list(self.zones),
            "gpus": self.machine.gpus,
            "gpu_model": self.machine.gpu_model,
            "price_usd_per_hour": self.price_usd_per_hour,
            "price_date": self.machine.price_date,
            "boot_allowance_seconds": self.machine.boot.allowance_seconds,
            "seconds": {"p50": round(self.seconds_p50), "p90": round(self.seconds_p90)} if known else None,
            "dollars": {"p50": round(self.dollars_p50, 4), "p90": round(self.dollars_p90, 4)}
            if known
            else None,
            "rate": {"per_gpu_and_second": round(self.rate.per_second, 1), "basis": self.rate.basis},
            "note": self.note,
            "refused": self.refused,
        }


@dataclass(frozen=True, kw_only=True)
class Weighed:
    """The pieces of a job and the types on offer, in the order in which they are to be asked."""

    pieces: tuple[Piece, ...]
    candidates: tuple[PlanCandidate, ...]
    table: tuple[OnGpus, ...]  # the model on all GPUs of other types, if GPUs train it together


def weigh(job: Job, work: Workload, offers: Offers, *, place: Place, rates: Mapping[str, Rate]) -> Weighed:
    """Weigh every type on offer, on the job's first market and then on its second: the job's own types in
    their order, else the cheapest first.

    `rates`: of each of these types, for the job's models (`knowledge.known_rates`).
    """
    machines = offers.priced.machines
    markets = tuple(dict.fromkeys(job.machine.market))
    candidates = [
        _candidate(job, work, machine, offers, market=market, place=place, rate=rates[machine.name])
        for market in markets
        for machine in machines
    ]
    if not job.machine.instance:
        candidates.sort(key=lambda one: (bool(one.refused), markets.index(one.market), one.dollars_p50))
    here = bool(place.chip)  # then the rates are those of this machine's cores
    return Weighed(
        pieces=work.pieces,
        candidates=tuple(candidates),
        table=gpu_table(
            job,
            work,
            asked=() if here else machines,
            image_line=offers.image_line,
            rates={} if here else rates,
        ),
    )


def _candidate(
    job: Job,
    work: Workload,
    machine: InstanceType,
    offers: Offers,
    *,
    market: str,
    place: Place,
    rate: Rate,
) -> PlanCandidate:
    """Return one row of the plan: time, price and cost, or the reason for the refusal."""
    zones = offers.zones.get(machine.name, ())
    spot = {
        zone: offers.spot_usd_per_hour[machine.name, zone]
        for zone in zones
        if market == "spot" and (machine.name, zone) in offers.spot_usd_per_hour
    }
    on_demand = on_demand_price(machine)
    price = min(spot.values()) if spot else on_demand
    on_aws = not place.chip and job.cost.is_measured
    together = on_gpus(job, work, machine, rate) if work.together and on_aws else None
    sharded = bool(together and together.placement and together.placement.sharded)
    places = None if work.gpus is None else places_on(machine.num_workers, work.gpus)
    time = estimate(work, machine, place=place, rate=rate, sharded=sharded)
    by_profile = estimate(work, machine, place=place, rate=rate.of_profile, sharded=sharded)
    refused, notes = "", list[str]()
    if not zones:
        sold = ", ".join(offers.elsewhere.get(machine.name, ()))
        refused = (
            f"offered only in {sold}, where the stack has no subnet"
            if sold
            else "not offered in a zone of the stack"
        )
    elif places == []:
        refused = f"it has {machine.num_workers} of the {work.gpus:g} GPUs that a value takes"
    elif not on_demand:
        refused = "no list price known, so no deadline can be made"
    elif not place.binding and not machine.launchable:
        notes.append("retired by AWS in 2026: rehearsals only")
    elif market == "spot" and not spot:
        notes.append("no spot price known: the list price")
    elif place.binding and not (verdict := judge(machine.name, offers.image_line)).works:
        refused = verdict.why
    elif together and together.refused:
        refused = together.refused
    elif on_aws and not together and places is None and (large := too_large(job, work, machine)):
        refused = large
    elif place.binding and verdict.unproven:
        notes.append(UNPROVEN)
    notes += [together.note] if together else []
    at_once = len(work.pieces)
    used = at_once if places is None else len({gpu for place in places[:at_once] for gpu in place})
    notes += [f"{min(len(places), at_once)} at a time"] if places and work.gpus else []
    idle = 0 if work.together else machine.num_workers - used
    notes += [f"{idle} of {machine.num_workers} GPUs idle"] if idle > 0 else []
    return PlanCandidate(
        machine=machine,
        market=market,
        zones=zones,
        price_usd_per_hour=price,
        seconds_p50=time.seconds_p50,
        seconds_p90=time.seconds_p90,
        seconds_slow=max(time.seconds_p90, by_profile.seconds_p90),
        visits=time.training * rate.on_machine(len(work.pieces), machine.num_workers),
        dollars_p50=dollars(time.seconds_p50, price),
        dollars_p90=dollars(time.seconds_p90, price),
        rate=rate,
        note="" if refused else "; ".join(filter(None, notes)),
        refused=refused,
        layout=together.note if together and not together.refused else "",
    )
