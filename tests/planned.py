"""Plans and work of tests, made without an account."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from trainer.aws.place import Place
from trainer.job.job import Job
from trainer.job.pieces import pieces_of
from trainer.launch.known_times import KnownTimes
from trainer.launch.plan import LaunchPlan, make_plan
from trainer.launch.preflight import Offers
from trainer.launch.work import timed
from trainer.machines.planner import Workload
from trainer.machines.storage import storage_cost


def plan_script(
    job: Job, offers: Offers, outputs: Any, *, known: KnownTimes, place: Place, input_bytes: int
) -> LaunchPlan:
    """Return the plan of a script's job with these known times."""
    pieces = Workload(pieces=pieces_of(job, (), timeframe=""), gpus=job.script.gpus_each)
    work, rates = timed(pieces, known, offers)
    return make_plan(
        job,
        work,
        offers,
        subnets=outputs.subnets,
        region=outputs.region,
        place=place,
        cap=timedelta(minutes=outputs.max_lifetime_minutes),
        rates=rates,
        storage=storage_cost(outputs.storage, throughput=outputs.efs_throughput, input_bytes=input_bytes),
    )
