"""The candidates of a plan: types on offer, each with its time, price and cost, or refused with a reason.
Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from trainer.aws.place import ACCOUNT, Place
from trainer.job.job import Job
from trainer.job.pieces.piece import Piece
from trainer.job.pieces.queue import places_on
from trainer.launch.checkpoints import CheckpointCost, checkpoint_cost
from trainer.launch.gpu_table import OnGpus, gpu_table, on_gpus, too_large
from trainer.launch.machines import on_demand_price
from trainer.launch.preflight import Offers
from trainer.machines.compatibility import judge
from trainer.machines.host_memory import rows_gib, rows_on_disk
from trainer.machines.instances import InstanceType
from trainer.machines.planner import (
    LONGEST_DEADLINE,
    SLOWER,
    Estimate,
    Workload,
    default_max_duration,
    dollars,
    estimate,
)
from trainer.machines.rates import NOT_ESTIMATED, Rate
from trainer.machines.spot import RECOVERY_SECONDS, expected_loss
from trainer.runs.calibration import Calibrated

UNPROVEN = "its image is not known to support it"
NO_SPOT_PRICE = "its spot price is not in the list"  # without an account, whose price it could be


@dataclass(frozen=True, kw_only=True)
class Timed:
    """The time of a job on one machine by one rate, without interruptions."""

    phases: Estimate
    seconds_slow: float  # which deadlines follow: the slower of the estimate and of earlier runs
    rate: Rate
    visits: float  # windows of one GPU in its training time, at that rate
    runs: int = 0  # of its shape on its type, whose times these are; 0: they follow from the rate

    @property
    def is_estimated(self) -> bool:
        """Return whether its times are estimated: not for a user's own model without a trial."""
        return self.rate.basis != NOT_ESTIMATED

    def to_dict(self) -> dict[str, Any]:
        """Return its seconds and its rate."""
        seconds = round(self.phases.seconds_p50) if self.is_estimated else None
        return {"seconds": seconds, "rate": self.rate.to_dict(), "source": self.source}

    @property
    def source(self) -> str:
        """Return where its times are from: measured here, yours, or formula."""
        return "measured here" if self.runs else self.rate.source

    def following(self, runs: Calibrated | None) -> Timed:
        """Return the time that the last runs of its shape took. Deadlines follow the slower of both."""
        if runs is None or not self.visits:
            return self
        phases = Estimate(
            boot=runs.boot,
            stage=runs.stage,
            training=self.visits / runs.visits_per_second,
            upload=runs.upload,
        )
        slow = max(self.seconds_slow, phases.seconds_p90)
        return replace(self, phases=phases, seconds_slow=slow, runs=runs.runs)


@dataclass(frozen=True, kw_only=True)
class PlanCandidate:
    """One type on one market: its time and cost on AWS, or in `refused` the reason why it is not used."""

    machine: InstanceType
    market: str
    zones: tuple[str, ...]
    price_usd_per_hour: float
    is_typical: bool = False  # the price is the typical one of the type's spot market, by a dated list
    time: Timed
    here: Timed | None = None  # on this desk, which takes the machine's place in a rehearsal
    checkpoints: CheckpointCost | None = None  # None: the command keeps none
    lost_seconds: float = 0.0  # that its interruptions are expected to cost
    note: str = ""
    refused: str = ""
    layout: str = ""  # how its GPUs train one model together
    nodes: int = 1  # machines of this type
    at_risk: int = 1  # of them, whose loss ends an attempt

    @property
    def usd_per_hour(self) -> float:
        """Return the price of all its machines."""
        return self.nodes * self.price_usd_per_hour

    @property
    def pool(self) -> tuple[str, str]:
        """Return its type and its market."""
        return self.machine.name, self.market

    @property
    def run(self) -> Timed:
        """Return the time that its run will take where it really runs."""
        return self.here or self.time

    @property
    def is_estimated(self) -> bool:
        """Return whether its times and dollars are estimated."""
        return self.time.is_estimated

    @property
    def rate(self) -> Rate:
        """Return the rate behind its times."""
        return self.time.rate

    @property
    def seconds_p50(self) -> float:
        """Return its seconds with what interruptions are expected to cost."""
        return self.time.phases.seconds_p50 + self.lost_seconds

    @property
    def seconds_p90(self) -> float:
        """Return the seconds that nine of ten runs stay below."""
        return self.seconds_p50 * SLOWER

    @property
    def dollars_p50(self) -> float:
        """Return its cost at P50."""
        return dollars(self.seconds_p50, self.usd_per_hour)

    @property
    def dollars_p90(self) -> float:
        """Return its cost at P90."""
        return dollars(self.seconds_p90, self.usd_per_hour)

    @property
    def sagemaker_usd(self) -> float | None:
        """Return the cost of the same seconds on SageMaker, on demand; None without a quote."""
        quoted = self.machine.sagemaker_usd_per_hour
        if not quoted or not self.is_estimated:
            return None
        return dollars(self.time.phases.seconds_p50, self.nodes * quoted)

    def longest_attempt(self, timed: Timed) -> timedelta:
        """Return the longest attempt of a job that names no duration, by one of its times."""
        return (
            default_max_duration(timed.seconds_slow, self.machine) if timed.is_estimated else LONGEST_DEADLINE
        )

    def to_dict(self) -> dict[str, Any]:
        """Return it as `--dry-run --json` prints it."""
        known, here = self.is_estimated, self.here
        return {
            "instance_type": self.machine.name,
            "seller": self.machine.seller or "AWS",
            "market": self.market,
            "zones": list(self.zones),
            "gpus": self.machine.gpus,
            "gpu_model": self.machine.gpu_model,
            "nodes": self.nodes,
            "price_usd_per_hour": self.price_usd_per_hour,
            "price_date": self.machine.spot.as_of
            if self.is_typical and self.machine.spot
            else self.machine.price_date,
            "boot_allowance_seconds": self.machine.boot.allowance_seconds,
            "seconds": {
                "p50": round(self.seconds_p50),
                "p90": round(self.seconds_p90),
                **self._phases(),
                "lost": round(self.lost_seconds, 1),
            }
            if known
            else None,
            "here": here.to_dict() if here else None,
            "dollars": {"p50": round(self.dollars_p50, 4), "p90": round(self.dollars_p90, 4)}
            if known
            else None,
            "sagemaker_dollars": round(usd, 4) if (usd := self.sagemaker_usd) is not None else None,
            "rate": self.rate.to_dict(),
            "source": self.time.source,
            "note": self.note,
            "refused": self.refused,
        }

    def _phases(self) -> dict[str, float]:
        phases = self.time.phases
        named = {
            "boot": phases.boot,
            "stage": phases.stage,
            "train": phases.training,
            "upload": phases.upload,
        }
        return {name: round(seconds, 1) for name, seconds in named.items()}


@dataclass(frozen=True, kw_only=True)
class Weighed:
    """The pieces of a job and the types on offer, in the order in which they are to be asked."""

    pieces: tuple[Piece, ...]
    candidates: tuple[PlanCandidate, ...]
    table: tuple[OnGpus, ...]  # the model on all GPUs of other types, if GPUs train it together


def hours(seconds: float) -> str:
    """Return a time of a plan as text."""
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.0f} min"


def weigh(
    job: Job,
    work: Workload,
    offers: Offers,
    *,
    place: Place,
    rates: Mapping[str, Rate],
    here: Mapping[str, Rate] | None = None,
    runs: Mapping[str, Calibrated] | None = None,
    keeps_checkpoints: bool = True,
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
        visits=phases.training * rate.on_machine(len(work.pieces), machine.num_trainers * work.nodes),
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
        price, is_typical = _price(machine, market, offers)
        refused, notes = self._verdict(machine, together)
        if market == "spot" and price == on_demand_price(machine):
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
        if not on_demand_price(machine):
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


def _price(machine: InstanceType, market: str, offers: Offers) -> tuple[float, bool]:
    """Return the dollars an hour of a type on a market, and whether it is the typical price of its spot
    market, for want of the account's. Without either it is the price on demand.
    """
    on_demand = on_demand_price(machine)
    if market != "spot":
        return on_demand, False
    pools = ((machine.name, zone) for zone in offers.zones.get(machine.name, ()))
    known = [offers.spot_usd_per_hour[pool] for pool in pools if pool in offers.spot_usd_per_hour]
    if known:
        return min(known), False
    if machine.spot is None or not offers.typical_spot:
        return on_demand, False
    return on_demand * (1 - machine.spot.saving), True


def restart_seconds(machine: InstanceType, checkpoints: CheckpointCost | None) -> float:
    """Return the seconds that an interruption costs: another machine, and what is trained again since the
    last checkpoint, if there are any.
    """
    again = checkpoints.lost_seconds if checkpoints else 0.0
    return machine.boot.expected_seconds + RECOVERY_SECONDS + again
