"""Weighing the types on offer: a plan's candidates, in the order in which they are to be asked. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainer.aws.place import ACCOUNT, Place
from trainer.job.job import Job
from trainer.job.pieces.piece import Piece
from trainer.job.pieces.queue import places_on
from trainer.launch.candidates import PlanCandidate, Timed
from trainer.launch.checkpoints import CheckpointCost, checkpoint_cost
from trainer.launch.gpu_table import OnGpus, gpu_table, on_gpus, too_large
from trainer.launch.machines import on_demand_price
from trainer.launch.preflight import Offers
from trainer.machines.compatibility import judge
from trainer.machines.host_memory import rows_gib, rows_on_disk
from trainer.machines.instances import InstanceType
from trainer.machines.planner import (
    Workload,
    estimate,
)
from trainer.machines.rates import Rate
from trainer.machines.spot import RECOVERY_SECONDS, expected_loss
from trainer.runs.calibration import Calibrated

UNPROVEN = "its image is not known to support it"
NO_SPOT_PRICE = "its spot price is not in the list"  # without an account, whose price it could be


@dataclass(frozen=True, kw_only=True)
class Weighed:
    """The pieces of a job and the types on offer, in the order in which they are to be asked."""

    pieces: tuple[Piece, ...]
    candidates: tuple[PlanCandidate, ...]
    table: tuple[OnGpus, ...]  # the model on all GPUs of other types, if GPUs train it together


def weigh(
    job: Job,
    work: Workload,
    offers: Offers,
    *,
    place: Place,
    rates: Mapping[str, Rate],
    keeps_checkpoints: bool,
    here: Mapping[str, Rate] | None = None,
    runs: Mapping[str, Calibrated] | None = None,
) -> Weighed:
    """Weigh every type on offer, on the job's first market and then on its second: the job's own types in
    their order, else the cheapest first.

    `rates`: of each of these types on AWS, for the job's models (`knowledge.known_rates`); `here`: those of
    this desk, where it takes their place. `runs`: what the last runs of its shape took on a type, at the
    place.
    """
    machines = offers.priced.machines
    markets = tuple(dict.fromkeys(job.machine.market))
    weighing = _Weighing(
        job=job,
        work=work,
        offers=offers,
        place=place,
        keeps_checkpoints=keeps_checkpoints,
        runs=runs or {},
    )
    candidates = [
        weighing.candidate(machine, market, rates[machine.name], here=(here or {}).get(machine.name))
        for market in markets
        for machine in machines
    ]
    if not job.machine.instance:
        candidates.sort(key=lambda one: (bool(one.refused), markets.index(one.market), one.dollars_p50))
    return Weighed(
        pieces=work.pieces,
        candidates=tuple(candidates),
        table=gpu_table(job, work, asked=machines, image_line=offers.image_line, rates=rates)
        if offers.image_line
        else (),
    )


def timed(work: Workload, machine: InstanceType, *, place: Place, rate: Rate, sharded: bool = False) -> Timed:
    """Return the time of work on a machine of a place at a rate of one of its GPUs, or of a core."""
    phases = estimate(work, machine, place=place, rate=rate, sharded=sharded)
    return Timed(
        phases=phases,
        seconds_slow=phases.seconds_p90,
        rate=rate,
        visits=phases.training * rate.per_second,
    )


@dataclass(frozen=True, kw_only=True)
class _Weighing:
    """The values that all candidates of a plan share."""

    job: Job
    work: Workload
    offers: Offers
    place: Place
    keeps_checkpoints: bool
    runs: Mapping[str, Calibrated]
    too_large: dict[str, str] = field(default_factory=dict)  # by type, for the second market

    def candidate(
        self, machine: InstanceType, market: str, rate: Rate, *, here: Rate | None
    ) -> PlanCandidate:
        """Return one row of the plan: time, price and cost, or the reason for the refusal."""
        job, work, offers = self.job, self.work, self.offers
        together = on_gpus(job, work, machine, rate) if work.together and job.cost.is_measured else None
        sharded = bool(together and together.placement and together.placement.sharded)
        runs = self.runs.get(machine.name)
        time = timed(work, machine, place=ACCOUNT, rate=rate, sharded=sharded)
        at_desk = timed(work, machine, place=self.place, rate=here).following(runs) if here else None
        time = time if here else time.following(runs)
        spot = _spot_price(machine, offers) if market == "spot" else None
        price, is_typical = spot or (on_demand_price(machine), False)
        refused, notes = self._verdict(machine, together)
        if market == "spot" and spot is None:
            notes.append("no spot price known: the list price")
            refused = refused or (NO_SPOT_PRICE if offers.where else "")
        notes += [together.note] if together and not together.refused else []
        notes += [*self._idle(machine), *self._on_disk(machine)]
        notes += [f"its GPUs compute {rate.busy:.0%} of the training"] if rate.busy < 1 else []
        checkpoints = None
        if self.keeps_checkpoints:
            checkpoints = checkpoint_cost(job, work.pieces, machine, usd_per_hour=price, place=self.place)
        lost = 0.0
        if market == "spot" and time.is_estimated:
            lost = expected_loss(
                seconds=time.phases.seconds_p50,
                restart_seconds=restart_seconds(machine, checkpoints),
                keeps_checkpoints=self.keeps_checkpoints,
                machines=machines_at_risk(work),
            )
        return PlanCandidate(
            machine=machine,
            market=market,
            zones=offers.zones.get(machine.name, ()),
            price_usd_per_hour=price,
            is_typical=is_typical,
            time=time,
            here=at_desk,
            checkpoints=checkpoints,
            lost_seconds=lost,
            note="" if refused else "; ".join(notes),
            refused=refused,
            layout=together.note if together and not together.refused else "",
            nodes=work.nodes,
            at_risk=machines_at_risk(work),
        )

    def _verdict(self, machine: InstanceType, together: OnGpus | None) -> tuple[str, list[str]]:
        """Return the reason for a refusal, or '' and notes. Where machines that do not fit may run, as in
        a rehearsal, the reason of AWS is a note.
        """
        offers, place = self.offers, self.place
        if not offers.zones.get(machine.name):
            sold = ", ".join(offers.elsewhere.get(machine.name, ()))
            return (
                f"offered only in {sold}, where the stack has no subnet"
                if sold
                else f"not offered in {offers.where or 'a zone of the stack'}"
            ), []
        if self._places(machine) == []:
            return f"it has {machine.num_workers} of the {self.work.gpus:g} GPUs that a value takes", []
        if not on_demand_price(machine) and not machine.seller:  # a desk of the user's may cost nothing
            return "no list price known, so no deadline can be made", []
        if not machine.launchable and not place.binding:
            return "", ["retired by AWS in 2026: rehearsals only"]
        verdict = judge(machine.name, offers.image_line)
        refused = verdict.why if place.binding and not verdict.works else ""
        refused = refused or self._not_grouped(machine)
        refused = refused or (together.refused if together else self._too_large(machine))
        refused = refused or ("" if machine.launchable else "AWS starts none of them any more")
        if refused:
            return (refused, []) if place.binding else ("", [f"AWS would skip it: {refused}"])
        is_doubtful = verdict.unproven and machine.gpus and not machine.seller
        return "", [UNPROVEN] if place.binding and is_doubtful else []

    def _not_grouped(self, machine: InstanceType) -> str:
        """Return why machines of a type can't train one model together, '' if they can."""
        if self.work.nodes == 1 or not self.work.together or machine.can_be_grouped:
            return ""
        return "no cluster placement group takes it, in which machines train one model together"

    def _too_large(self, machine: InstanceType) -> str:
        job, work = self.job, self.work
        if not job.cost.is_measured or work.gpus is not None or not machine.gpus:
            return ""
        if machine.name not in self.too_large:
            self.too_large[machine.name] = too_large(job, work, machine)
        return self.too_large[machine.name]

    def _on_disk(self, machine: InstanceType) -> list[str]:
        """Return a note on rows that stay on the machine's disk, since they are too large for its memory."""
        host: dict[str, Any] = {"host_gib": machine.memory_gib, "workers": machine.num_trainers}
        sizes = [
            rows_gib(self.job, bars=piece.bars)
            for piece in self.work.pieces
            if self.work.gpus is None and rows_on_disk(self.job, bars=piece.bars, **host)
        ]
        return [f"rows stay on its disk, up to {max(sizes):.1f} GiB a model"] if sizes else []

    def _places(self, machine: InstanceType) -> list[tuple[int, ...]] | None:
        gpus = self.work.gpus
        return None if gpus is None else [tuple(place) for place in places_on(machine.num_workers, gpus)]

    def _used_by(self, places: Sequence[tuple[int, ...]], at_once: int) -> int:
        """Return the GPUs of all machines that so many values at a time take."""
        whole, rest = divmod(min(at_once, len(places) * self.work.nodes), max(1, len(places)))
        taken = [len({gpu for place in places[:some] for gpu in place}) for some in (len(places), rest)]
        return whole * taken[0] + taken[1]

    def _idle(self, machine: InstanceType) -> list[str]:
        """Return notes on values at a time and on GPUs without work."""
        places, at_once = self._places(machine), len(self.work.pieces)
        used = at_once if places is None else self._used_by(places, at_once)
        notes = (
            [f"{min(len(places) * self.work.nodes, at_once)} at a time"] if places and self.work.gpus else []
        )
        gpus = machine.num_workers * self.work.nodes
        idle = 0 if self.work.together or not machine.gpus else gpus - used
        return [*notes, *([f"{idle} of {gpus} GPUs idle"] if idle > 0 else [])]


def machines_at_risk(work: Workload) -> int:
    """Return how many machines may end an attempt by their loss: all where they train one model, else the
    head, whose queue the others share.
    """
    return work.nodes if work.together else 1


def _spot_price(machine: InstanceType, offers: Offers) -> tuple[float, bool] | None:
    """Return the dollars an hour of a type on spot, and whether they are typical of its market, for want of
    the account's; None if neither is known.
    """
    pools = ((machine.name, zone) for zone in offers.zones.get(machine.name, ()))
    known = [offers.spot_usd_per_hour[pool] for pool in pools if pool in offers.spot_usd_per_hour]
    if known:
        return min(known), False
    if machine.spot is None or not offers.typical_spot:
        return None
    return on_demand_price(machine) * (1 - machine.spot.saving), True


def restart_seconds(machine: InstanceType, checkpoints: CheckpointCost | None) -> float:
    """Return the seconds that an interruption costs: another machine, and what is trained again since the
    last checkpoint, if there are any.
    """
    again = checkpoints.lost_seconds if checkpoints else 0.0
    return machine.boot.expected_seconds + RECOVERY_SECONDS + again
