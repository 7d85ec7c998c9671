"""Commitments, AWS's and their prices in TABLE_REGION without an account: commitments.csv.

Package data, no network; `trainer.launch.commitment_prices` asks an account's AWS.

A commitment is billed every hour of its term, used or not. A row without a source and a date is refused; what
no source quotes has no row. The list has no savings plan: no dated, public one was found on 2026-11-26.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

RESERVED, SAVINGS_PLAN = "reserved", "savings_plan"
UPFRONT = ("none", "partial", "all")


@dataclass(frozen=True, kw_only=True)
class Commitment:
    """A term for which an instance type is paid, used or not."""

    instance_type: str
    plan: str  # RESERVED: a standard reserved instance; SAVINGS_PLAN: a compute savings plan
    years: int
    upfront: str  # one of UPFRONT
    usd_per_hour: float  # of each hour of the term, with what was paid upfront
    as_of: str
    source: str

    @property
    def title(self) -> str:
        """Return its name in a table."""
        plan = self.plan.replace("_", " ")
        upfront = "no" if self.upfront == "none" else self.upfront
        return f"{plan}, {self.years} year{'s' if self.years > 1 else ''}, {upfront} upfront"


@cache
def commitments() -> tuple[Commitment, ...]:
    """Return every row of the list. Raises ValueError for one without a source, a date or a price."""
    table = (files("trainer.machines") / "commitments.csv").read_text(encoding="utf-8")
    return tuple(_commitment(row) for row in csv.DictReader(table.splitlines()))


def commitments_of(instance_type: str) -> tuple[Commitment, ...]:
    """Return the commitments of a type in TABLE_REGION, the cheapest hour first."""
    found = [one for one in commitments() if one.instance_type == instance_type]
    return tuple(sorted(found, key=lambda one: one.usd_per_hour))


def _commitment(row: dict[str, str]) -> Commitment:
    one = Commitment(
        instance_type=row["instance_type"],
        plan=row["plan"],
        years=int(row["years"]),
        upfront=row["upfront"],
        usd_per_hour=float(row["usd_per_hour"]),
        as_of=row["as_of"],
        source=row["source"],
    )
    known = one.plan in (RESERVED, SAVINGS_PLAN) and one.years in (1, 3) and one.upfront in UPFRONT
    if not (known and one.source and one.as_of and one.usd_per_hour > 0):
        raise ValueError(f"commitments.csv: {one.instance_type} {one.plan} lacks source, date or price")
    return one
