"""Offers and plans of tests, made without an account."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from trainer.aws.place import ACCOUNT, Place
from trainer.job.job import Job
from trainer.job.pieces import pieces_of
from trainer.launch.known_times import KnownTimes
from trainer.launch.plan import LaunchPlan, make_plan
from trainer.launch.preflight import Offers
from trainer.launch.prices import table_prices
from trainer.launch.weighing import weigh
from trainer.launch.work import timed
from trainer.machines.instances import instance_type
from trainer.machines.planner import Workload, profile_on
from trainer.machines.rates import Rate, rate_of
from trainer.machines.storage import StorageCost, storage_cost
from trainer.runs.calibration import Calibrated

SUBNETS = {"us-east-1a": "subnet-a", "us-east-1b": "subnet-b"}
ZONES = tuple(SUBNETS)
TWELVE_HOURS = timedelta(hours=12)


def offers_of(*names: str, **changed: Any) -> Offers:
    """Return offers of these types in both zones, at the table's prices."""
    offered: dict[str, Any] = {
        "image_line": "oss-nvidia-driver-gpu-pytorch-2.13-ubuntu-26.04",
        "image_id": "ami-1",
        "launch_template_id": "lt-1",
        "zones": dict.fromkeys(names, ZONES),
        "priced": table_prices([instance_type(name) for name in names]),
    }
    return Offers(**(offered | changed))


def plan_of(
    job: Job,
    work: Workload,
    offers: Offers,
    *,
    place: Place = ACCOUNT,
    cap: timedelta = TWELVE_HOURS,
    subnets: Mapping[str, str] = SUBNETS,
    rates: Mapping[str, Rate] | None = None,
    here: Mapping[str, Rate] | None = None,
    runs: Mapping[str, Calibrated] | None = None,
    storage: StorageCost | None = None,
    keeps_checkpoints: bool = True,
) -> LaunchPlan:
    """Return the plan of work on these offers. Other rates than `rates`, of AWS, and `here`, of a desk that
    rehearses, are the profiles'.
    """

    def known(at: Place) -> dict[str, Rate]:
        return {one.name: rate_of(profile_on(one, at), job) for one in offers.priced.machines}

    weighed = weigh(
        job,
        work,
        offers,
        place=place,
        rates=known(ACCOUNT) | dict(rates or {}),
        here=known(place) | dict(here or {}) if place.chip else None,
        runs=runs,
        keeps_checkpoints=keeps_checkpoints,
    )
    return make_plan(
        job,
        weighed,
        offers,
        subnets=subnets,
        region="us-east-1",
        place=place,
        cap=cap,
        storage=storage,
    )


def plan_script(job: Job, offers: Offers, *, known: KnownTimes, input_bytes: int, **more: Any) -> LaunchPlan:
    """Return the plan of a script's job with these known times; `more` as of `plan_of`."""
    pieces = Workload(pieces=pieces_of(job, (), timeframe=""), gpus=job.gpus_each)
    load = timed(pieces, known, offers)
    storage = storage_cost("s3", throughput="", input_bytes=input_bytes)
    return plan_of(job, load.work, offers, rates=load.rates, storage=storage, **more)
