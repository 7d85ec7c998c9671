"""GPUs x time x dollars for a job's models, on all GPUs together or each on one. Pure; the plan shows it.

One type for each chip and number of GPUs, the cheapest that the image supports, at list prices. Quotas and
zones are checked for the plan's candidates only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trainer.aws.place import ACCOUNT
from trainer.base.errors import UsageError
from trainer.job.job import Job
from trainer.job.search import largest
from trainer.machines.compatibility import judge
from trainer.machines.instances import InstanceType, catalogue
from trainer.machines.memory import fit
from trainer.machines.planner import Workload, dollars, estimate, profile_on
from trainer.machines.ranks import Placement, place_on_gpus
from trainer.machines.rates import Rate, rate_of
from trainer.machines.scaling import ALONE, POINTLESS, link_between, speedup

COUNTS = (1, 2, 4, 8)


@dataclass(frozen=True, kw_only=True)
class OnGpus:
    """A job's models on all GPUs of one type: placement, time and cost, or in `refused` the reason why they
    do not fit.
    """

    machine: InstanceType
    link: str = ALONE  # over which they train a model together
    placement: Placement | None = None  # of a model that they train together
    speedup: float = 0.0  # against one of these GPUs; of one model by the scaling law
    seconds_p50: float = 0.0
    dollars_p50: float = 0.0
    refused: str = ""
    nodes: int = 1  # machines

    @property
    def devices(self) -> int:
        """Return the number of GPUs."""
        return self.machine.num_workers * self.nodes

    @property
    def is_pointless(self) -> bool:
        """Return whether half of the GPUs would be as fast: the link is slow, or there are few models."""
        return not self.refused and self.speedup < POINTLESS * self.devices

    @property
    def note(self) -> str:
        """Return a note on the placement and the cost of the link, or the reason of a refusal."""
        if self.refused or self.placement is None:
            return self.refused
        if self.devices == 1:
            needed = f"{self.placement.memory_gib:.1f} GiB by the memory formula"
            return f"the model fits its one GPU, {self.placement.words} ({needed})"
        of = f" of {self.nodes} machines" if self.nodes > 1 else ""
        law = f"{self.devices} GPUs{of} train it {self.speedup:.1f} times as fast as one by the scaling law"
        return (
            f"{law}: not worthwhile over {self.link}"
            if self.is_pointless
            else f"{law}{f' over {self.link}' if of else ''}, {self.placement.words}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return it as `--dry-run --json` prints it."""
        known = not self.refused
        return {
            "instance_type": self.machine.name,
            "gpus": self.devices,
            "gpu_model": self.machine.gpu_model,
            "link": self.link,
            "fsdp": self.placement.sharded if self.placement else None,
            "micro_batch": self.placement.micro_batch if self.placement else None,
            "memory_gib": round(self.placement.memory_gib, 2) if self.placement else None,
            "speedup": round(self.speedup, 2) if known else None,
            "pointless": self.is_pointless,
            "seconds": round(self.seconds_p50) if known else None,
            "dollars": round(self.dollars_p50, 4) if known else None,
            "refused": self.refused,
        }


def on_gpus(job: Job, work: Workload, machine: InstanceType, rate: Rate | None) -> OnGpus:
    """Return a job's models on all GPUs of its machines, of a type, at the rate of one of them."""
    models = math.ceil(len(work.pieces) / (machine.num_workers * work.nodes))
    rate = rate or rate_of(profile_on(machine, ACCOUNT), job, models=models)
    if work.together is None:
        return _each_alone(job, work, machine, rate)
    profile, link = profile_on(machine, ACCOUNT), link_between(machine, work.nodes)
    bars = max((piece.bars for piece in work.pieces), default=0)
    try:
        placement = place_on_gpus(
            profile,
            job,
            devices=machine.num_workers * work.nodes,
            memory_gib=machine.gpu_memory_gib,
            features=len(job.data.inputs),
            bars=bars,
        )
    except UsageError as error:
        refused = f"{error.what} ({error.why})"
        return OnGpus(machine=machine, link=link.name, refused=refused, nodes=work.nodes)
    time = estimate(work, machine, place=ACCOUNT, rate=rate, sharded=placement.sharded)
    return OnGpus(
        machine=machine,
        link=link.name,
        placement=placement,
        speedup=speedup(
            work.together,
            devices=machine.num_workers * work.nodes,
            visits_per_second=rate.per_second,
            link=link,
            sharded=placement.sharded,
        ),
        seconds_p50=time.seconds_p50,
        dollars_p50=dollars(time.seconds_p50, work.nodes * (machine.price_usd_per_hour or 0.0)),
        nodes=work.nodes,
    )


def _each_alone(job: Job, work: Workload, machine: InstanceType, rate: Rate) -> OnGpus:
    """Return models of which each has one GPU."""
    if refused := too_large(job, work, machine):
        return OnGpus(machine=machine, refused=refused)
    time = estimate(work, machine, place=ACCOUNT, rate=rate)
    alone = estimate(replace(work, nodes=1), replace(machine, gpus=1.0), place=ACCOUNT, rate=rate)
    return OnGpus(
        machine=machine,
        speedup=alone.training / time.training if time.training else 1.0,
        seconds_p50=time.seconds_p50,
        dollars_p50=dollars(time.seconds_p50, work.nodes * (machine.price_usd_per_hour or 0.0)),
        nodes=work.nodes,
    )


def gpu_table(
    job: Job, work: Workload, *, asked: Sequence[InstanceType], image_line: str, rates: Mapping[str, Rate]
) -> tuple[OnGpus, ...]:
    """Return a row for each chip and number of GPUs, cheapest type each, by chip in the catalogue's order.

    `asked` are the candidates with their region's prices. Empty for a script, and for a user's own model
    without a trial. Each row is one machine, however many the job has.
    """
    if work.gpus is not None or not job.cost.is_measured:
        return ()
    work = replace(work, nodes=1)
    known = {**catalogue(), **{one.name: one for one in asked if not one.seller}}
    return tuple(
        on_gpus(job, work, machine, rates.get(machine.name))
        for machine in cheapest_of_each(known.values(), image_line)
    )


def cheapest_of_each(
    machines: Iterable[InstanceType], image_line: str, *, shares: bool = False
) -> list[InstanceType]:
    """Return the cheapest type of each chip and number of GPUs that the image line supports; with `shares`
    also of shares of a GPU.
    """
    cheapest: dict[tuple[str, float], InstanceType] = {}
    for machine in machines:
        key = (machine.gpu_model, machine.gpus)
        counts = machine.gpus in COUNTS or (shares and machine.gpus < 1)
        if not counts or not machine.launchable or not machine.price_usd_per_hour:
            continue
        if not judge(machine.name, image_line).works:
            continue
        if key not in cheapest or machine.price_usd_per_hour < (cheapest[key].price_usd_per_hour or 0.0):
            cheapest[key] = machine
    return list(cheapest.values())


def instead(rows: Sequence[OnGpus], *, seconds: float = math.inf, usd: float = math.inf) -> str:
    """Return the cheapest three types of a table that are done within a time and an amount, for an error; ''
    if none is.
    """
    able = [row for row in rows if not row.refused and row.seconds_p50 <= seconds and row.dollars_p50 <= usd]
    cheapest = sorted(able, key=lambda row: row.dollars_p50)[:3]
    named = [
        f"{row.machine.name} ({row.seconds_p50 / 3600:.1f} h, ${row.dollars_p50:.2f})" for row in cheapest
    ]
    return f" Or take {', '.join(named)}." if named else ""


def too_large(job: Job, work: Workload, machine: InstanceType) -> str:
    """Return why one model of the job does not fit a GPU of a type that trains it alone; '' if it does."""
    try:
        fit(
            profile_on(machine, ACCOUNT),
            largest(job),
            memory_gib=machine.gpu_memory_gib,
            features=len(job.data.inputs),
            bars=max((piece.bars for piece in work.pieces), default=0),
        )
    except UsageError as error:
        return f"{error.what} ({error.why})"
    return ""
