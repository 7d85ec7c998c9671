"""Every way to pay for the runs of a job on one instance type: once, weekly, daily, always on. Pure.

A way has a price a month, used or not, and a price a run. From these two follows which way is cheapest at how
many hours a month.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Any

from trainer.base.text import counted
from trainer.launch.candidates import PlanCandidate
from trainer.launch.machines import on_demand_price
from trainer.machines.commitments import RESERVED, SAVINGS_PLAN, Commitment
from trainer.machines.planner import dollars

MONTH_HOURS = 8760 / 12  # as AWS's own calculator counts a month
RUNS_A_MONTH = {"weekly": 365 / 7 / 12, "daily": 365 / 12}
ON_DEMAND, SPOT, SAGEMAKER = "on demand", "spot", "SageMaker"


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way to pay: its dollars a month and an hour, what a run takes and costs, and its source."""

    name: str
    month_usd: float = 0.0  # used or not
    term_months: int = 0  # that are paid in any case
    price_usd: float = 0.0  # of a machine that is bought
    usd_per_hour: float = 0.0
    run_seconds: float
    run_usd: float
    source: str
    is_one_machine: bool = False  # that runs can't share

    @property
    def run_hours(self) -> float:
        """Return the hours that a run occupies a machine."""
        return self.run_seconds / 3600

    @property
    def once_usd(self) -> float:
        """Return the dollars of a single run, with all that is paid for it in any case."""
        return self.run_usd + self.price_usd + self.term_months * self.month_usd

    @property
    def always_usd(self) -> float:
        """Return the dollars of a month in which the machine is always on."""
        return self.month_usd + MONTH_HOURS * self.usd_per_hour

    def most_of(self, run_hours: float) -> float:
        """Return the share of the runs of a machine that is always on, each so many hours, that it can do."""
        return min(1.0, run_hours / self.run_hours) if self.is_one_machine else 1.0

    def monthly_usd(self, runs: float) -> float | None:
        """Return the dollars of a month with so many runs; None: one machine has not as many hours."""
        if self.is_one_machine and runs * self.run_hours > MONTH_HOURS:
            return None
        return self.month_usd + runs * self.run_usd

    def to_dict(self) -> dict[str, Any]:
        """Return it as `mayfly plan --json` prints it."""
        monthly = {name: _rounded(self.monthly_usd(runs)) for name, runs in RUNS_A_MONTH.items()}
        return {
            "way": self.name,
            "usd_per_hour": round(self.usd_per_hour, 6),
            "usd_per_month": round(self.month_usd, 4),
            "seconds": round(self.run_seconds),
            "once": _rounded(self.once_usd),
            **monthly,
            "always_on": _rounded(self.always_usd),
            "source": self.source,
        }


@dataclass(frozen=True, kw_only=True)
class WaysToPay:
    """The ways to pay for one type, and sentences on which is cheapest from how many hours a month on."""

    instance_type: str
    nodes: int = 1  # machines of it
    run_hours: float
    ways: tuple[Way, ...]
    sentences: tuple[str, ...]
    missing: tuple[str, ...]  # ways without a price, and what to give

    def to_dict(self) -> dict[str, Any]:
        """Return it as `mayfly plan --json` prints it."""
        return {
            "instance_type": self.instance_type,
            "nodes": self.nodes,
            "run_hours": round(self.run_hours, 4),
            "ways": [way.to_dict() for way in self.ways],
            "sentences": list(self.sentences),
            "missing": list(self.missing),
        }


def ways_to_pay(
    taken: PlanCandidate,
    candidates: Sequence[PlanCandidate],
    desks: Sequence[PlanCandidate],
    commitments: Sequence[Commitment],
    *,
    disk_usd_per_hour: float = 0.0,
) -> WaysToPay:
    """Return every way to pay for the type of an estimated candidate.

    `candidates`: the plan's, of which the other market is taken; `desks`: the user's own machines;
    `commitments`: those of its type; `disk_usd_per_hour`: of a root disk, which candidates' prices include
    and commitments don't.
    """
    machine = taken.machine
    spot = next((one for one in candidates if one.pool == (machine.name, "spot") and not one.refused), None)
    seconds = taken.time.phases.seconds_p50
    hourly, several = taken.nodes * on_demand_price(machine), taken.nodes
    ways = [
        Way(
            name=ON_DEMAND,
            usd_per_hour=hourly,
            run_seconds=seconds,
            run_usd=dollars(seconds, hourly),
            source=f"{machine.price_date}",
        )
    ]
    if spot is not None:
        ways.append(_spot(spot))
    disks = several * disk_usd_per_hour
    ways += [_committed(one, seconds, machines=several, disks_usd_per_hour=disks) for one in commitments]
    if (quoted := taken.sagemaker_usd) is not None and machine.sagemaker_usd_per_hour:
        ways.append(
            Way(
                name=SAGEMAKER,
                usd_per_hour=several * machine.sagemaker_usd_per_hour,
                run_seconds=seconds,
                run_usd=quoted,
                source="as quoted",
            )
        )
    ways += [_own(one) for one in desks if one.is_estimated and not one.refused]
    return WaysToPay(
        instance_type=machine.name,
        nodes=several,
        run_hours=seconds / 3600,
        ways=tuple(ways),
        sentences=tuple(_sentences(ways, seconds / 3600)),
        missing=tuple(_missing(ways, spot, commitments)),
    )


def _spot(spot: PlanCandidate) -> Way:
    market = spot.machine.spot
    return Way(
        name=SPOT,
        usd_per_hour=spot.usd_per_hour,
        run_seconds=spot.seconds_p50,
        run_usd=spot.dollars_p50,
        source=f"typical, {market.as_of}" if spot.is_typical and market else "the account's",
    )


def _committed(one: Commitment, seconds: float, *, machines: int, disks_usd_per_hour: float) -> Way:
    return Way(
        name=one.title,
        month_usd=machines * MONTH_HOURS * one.usd_per_hour,
        term_months=12 * one.years,
        usd_per_hour=disks_usd_per_hour,
        run_seconds=seconds,
        run_usd=dollars(seconds, disks_usd_per_hour),
        source=f"{one.as_of}",
        is_one_machine=True,
    )


def _own(desk: PlanCandidate) -> Way:
    owned = desk.machine.owned
    return Way(
        name=desk.machine.name,
        month_usd=owned.usd_per_month if owned else 0.0,
        price_usd=owned.price_usd if owned else 0.0,
        usd_per_hour=desk.price_usd_per_hour,
        run_seconds=desk.seconds_p50,
        run_usd=desk.dollars_p50,
        source=desk.machine.source,
        is_one_machine=True,
    )


def _sentences(ways: Sequence[Way], run_hours: float) -> Iterator[str]:
    """Yield which way is cheapest from how many hours a month on: of all, and without spot."""
    yield from_where(ways, run_hours, "Cheapest")
    without = [way for way in ways if way.name != SPOT]
    if len(without) < len(ways):
        yield from_where(without, run_hours, "Without spot")


def from_where(ways: Sequence[Way], run_hours: float, title: str) -> str:
    """Return which way is cheapest from how many hours a month on, as a sentence."""
    (_, first), *later = cheapest_by_hours(ways, run_hours)
    if not later:
        return f"{title}: {first.name}, at any number of hours a month."
    text = f"{title}: {first.name}{_most_of(first, run_hours)}"
    for hours, way in later:
        runs = counted(max(1, round(hours / run_hours)), "run")
        text += f"; from {hours:,.0f} h a month on ({hours / MONTH_HOURS * 24:.1f} h a day, {runs})"
        text += f" {way.name}{_most_of(way, run_hours)}"
    return f"{text}."


def _most_of(way: Way, run_hours: float) -> str:
    """Return how much one machine can do that is slower than the type, as text."""
    if way.most_of(run_hours) == 1:
        return ""
    return f" (one does {MONTH_HOURS / way.run_hours:,.0f} runs a month)"


def cheapest_by_hours(ways: Sequence[Way], run_hours: float) -> list[tuple[float, Way]]:
    """Return the cheapest way and the hours a month from which on it is, in their order.

    Hours are those of the type that the plan recommends: a run on an own machine counts as one there, however
    long it takes, and no way is chosen beyond what one machine can do. Ways that are never cheapest are
    missing.
    """

    def usd(way: Way, hours: float) -> float:
        return way.month_usd + hours / run_hours * way.run_usd

    most = [MONTH_HOURS * way.most_of(run_hours) for way in ways]
    crossings = (
        (other.month_usd - one.month_usd) * run_hours / (one.run_usd - other.run_usd)
        for one, other in combinations(ways, 2)
        if one.run_usd != other.run_usd
    )
    edges = {0.0, MONTH_HOURS, *most, *(hours for hours in crossings if 0 < hours < MONTH_HOURS)}
    steps: list[tuple[float, Way]] = []
    for begin, end in pairwise(sorted(edges)):
        middle = (begin + end) / 2
        able = [way for way, hours in zip(ways, most, strict=True) if middle <= hours]
        now = min(able, key=lambda way: usd(way, middle))
        if not steps or now is not steps[-1][1]:
            steps.append((begin, now))
    return steps


def _missing(
    ways: Sequence[Way], spot: PlanCandidate | None, commitments: Sequence[Commitment]
) -> Iterator[str]:
    plans = {one.plan for one in commitments}
    absent = [
        *([SPOT] if spot is None else []),
        *(["reserved"] if RESERVED not in plans else []),
        *(["savings plans"] if SAVINGS_PLAN not in plans else []),
        *([SAGEMAKER] if not any(way.name == SAGEMAKER for way in ways) else []),
    ]
    if absent:
        yield f"{counted(len(absent), 'way')} without a dated price: {', '.join(absent)}"
    if not any(way.price_usd or way.name.startswith("your ") for way in ways):
        yield "your own machine: --desk rtx_4090=watts:450,kwh:0.17,price:1900,years:3, with your numbers"


def _rounded(usd: float | None) -> float | None:
    return None if usd is None else round(usd, 4)
