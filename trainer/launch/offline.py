"""Offers without an account: list prices of the package's tables, dated, and no bucket.

`mayfly plan` weighs them as a launch weighs an account's. Standard library only, no network.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path

from trainer.aws.access import Access
from trainer.aws.objects import Stored
from trainer.aws.stack_outputs import StackOutputs
from trainer.job.job import Job
from trainer.launch.gpu_table import cheapest_of_each
from trainer.launch.machines import machines_of
from trainer.launch.preflight import Offers
from trainer.launch.prices import PricedTypes, assumed_prices, table_prices
from trainer.launch.work import Account
from trainer.machines.commitments import Commitment
from trainer.machines.cpu_types import USUAL, cpu_instance_type
from trainer.machines.instances import (
    TABLE_REGION,
    InstanceType,
    catalogue,
)
from trainer.machines.planner import LONGEST_DEADLINE

# The line of images that a new stack has (Pulumi.yaml); a test compares them.
IMAGE_LINE = "oss-nvidia-driver-gpu-pytorch-2.13-ubuntu-26.04"
ASKED = "mayfly plan --stack NAME asks AWS."
OUTSIDE = "prices outside AWS"
STALE_DAYS = 180  # from which on the age of a list is a note


class NoBucket:
    """A bucket that has nothing, and keeps nothing."""

    def get(self, *, key: str, version_id: str = "", first_bytes: int = 0) -> Stored | None:
        return None

    def head(self, *, key: str, version_id: str = "") -> Stored | None:
        return None

    def list(self, *, prefix: str, most: int = 0, after: str = "") -> tuple[Stored, ...]:
        return ()

    def versions(self, *, key: str) -> tuple[Stored, ...]:
        return ()

    def history(self, *, prefix: str) -> tuple[Stored, ...]:
        return ()

    def folders(self, *, prefix: str) -> tuple[str, ...]:
        return ()

    def put(self, *, key: str, body: bytes, if_match: str = "", create: bool = False) -> str:
        return ""

    def copy(
        self,
        *,
        source: str,
        version_id: str,
        key: str,
        if_match: str = "",
        create: bool = False,
        sha256: str = "",
    ) -> None:
        raise NotImplementedError("a plan writes nothing")

    def delete(self, *, key: str, version_id: str) -> None:
        raise NotImplementedError("a plan deletes nothing")

    def digest(self, *, key: str, version_id: str) -> str:
        raise NotImplementedError("a plan reads no data")

    def fetch(self, *, key: str, version_id: str, path: Path, sha256: str, size: int) -> str:
        raise NotImplementedError("a plan reads no data")


def no_account(job: Job, region: str) -> Account:
    """Return what takes an account's place. The job's own `max_duration` is the only cap."""
    cap = job.machine.max_duration_or(LONGEST_DEADLINE)
    outputs = StackOutputs(
        project="",
        stack="",
        bucket="",
        region=region,
        image_line=IMAGE_LINE,
        subnets={region: ""},
        max_lifetime_minutes=math.ceil(cap / timedelta(minutes=1)),
    )
    return Account(access=Access(region=region), outputs=outputs, objects=NoBucket())


def machines_to_weigh(job: Job, image_line: str = IMAGE_LINE) -> list[InstanceType]:
    """Return the job's own types, else the cheapest of each chip and number of GPUs; for a script and for
    agents also those without a GPU.
    """
    if job.machine.instance:
        return machines_of(replace(job, machine=replace(job.machine, gpu_profile="")))
    found = cheapest_of_each(catalogue().values(), image_line, shares=True)
    return [*found, *(cpu_instance_type(name) for name in USUAL)] if job.may_lack_gpus else found


def list_offers(machines: Sequence[InstanceType], *, region: str) -> Offers:
    """Return what the tables offer in a region, at list prices; of another region than the table's it is not
    known which types are sold.
    """
    at_home = region == TABLE_REGION
    priced = (
        table_prices(machines)
        if at_home
        else assumed_prices(machines, region=region, why="mayfly plan --stack NAME asks the account")
    )
    sold: dict[str, tuple[str, ...]] = {
        one.name: (region,) if one.is_sold or not at_home else () for one in machines
    }
    return Offers(
        image_line=IMAGE_LINE,
        image_id="",
        launch_template_id="",
        zones=sold,
        priced=priced,
        typical_spot=True,
        where=region,
    )


def priced_outside(machines: Sequence[InstanceType]) -> Offers:
    """Return machines outside AWS as offers, on demand at their own prices."""
    return Offers(
        image_line="",
        image_id="",
        launch_template_id="",
        zones={one.name: (one.seller,) for one in machines},
        priced=PricedTypes(machines=tuple(machines), basis="their sources"),
    )


def age_notes(
    machines: Sequence[InstanceType],
    commitments: Sequence[Commitment],
    *,
    today: date,
    asked: bool,
) -> list[str]:
    """Return notes on lists that are old, and on a clock that is before one of them. `asked`: spot prices
    are the account's.
    """
    lists = {
        "list prices": {one.price_date for one in machines if one.price_date and not one.seller},
        "typical spot prices": {one.spot.as_of for one in machines if one.spot and not asked},
        OUTSIDE: {one.price_date for one in machines if one.price_date and one.seller},
        "reserved prices": {one.as_of for one in commitments},
    }
    notes, newest = [], max((day for days in lists.values() for day in days), default="")
    if newest > today.isoformat():
        return [
            f"this machine's clock says {today}, before its price list of {newest}: how old prices are is not"
            " known. Set the clock."
        ]
    for what, days in lists.items():
        oldest = min(days, default="")
        age = (today - date.fromisoformat(oldest)).days if oldest else 0
        if age > STALE_DAYS:
            do = "" if asked or what == OUTSIDE else f" {ASKED}"
            notes.append(f"the {what} are of {oldest}, {age} days old.{do}")
    return notes
