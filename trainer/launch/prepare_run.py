"""A prepare run, planned: a short run on a cheap machine that refreshes, checks and indexes a
data set.

It comes before a scheduled run if the job has a refresh script, or if the set has files without an index
entry: control has no pyarrow, and a GPU bills from its first second. Otherwise it is a run like any other.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from trainer.base.errors import ConfigError
from trainer.data.table import SUFFIXES
from trainer.job.job import Job
from trainer.launch.inputs import Input
from trainer.launch.machines import on_demand_price
from trainer.launch.plan import RunPlan, rungs_of_type
from trainer.launch.preflight import Offers, query_offers
from trainer.launch.work import Account
from trainer.machines.instances import cpu_instance_type
from trainer.machines.planner import dollars
from trainer.runs.deadline import TimeLimit, time_limit

LONGEST = timedelta(minutes=30)  # of a prepare run, as its template has it (infra/__main__.py)
EXPECTED_SECONDS = 300.0  # assumed: boot and packages 150 s, then a script that fetches some weeks


def unindexed(inputs: Iterable[Input]) -> list[Input]:
    """Return the files of a set that may hold candles and that no index entry describes."""
    return [item for item in inputs if not item.summary and item.key.lower().endswith(SUFFIXES)]


def needs_prepare_run(job: Job, inputs: Iterable[Input]) -> bool:
    """Return whether a scheduled run needs a prepare run first."""
    return bool(job.data.refresh or unindexed(inputs))


def plan_prepare_run(
    account: Account, *, budget_usd: float, pinned_image: str = ""
) -> tuple[Offers, RunPlan]:
    """Query the account and plan a prepare run. Raises a TrainerError if its type is unknown or not
    offered.
    """
    outputs = account.outputs
    machine = cpu_instance_type(outputs.prepare_type)
    offers = query_offers(
        account.access,
        outputs=outputs,
        machines=[machine],
        spot=False,
        pinned_image=pinned_image,
        template=outputs.prepare_template,
    )
    (machine,) = offers.priced.machines
    zones, price = offers.zones.get(machine.name, ()), on_demand_price(machine)
    if not zones or not price:
        why = "no zone of the stack offers it" if not zones else "its price is not known"
        do = "Set another prepare_type and run pulumi up."
        raise ConfigError(f"no prepare run on {machine.name} in {outputs.region}", why=why, do=do)
    run_limit = TimeLimit(duration=LONGEST, cause="prepare")
    limit = time_limit(run=run_limit, budget_usd=budget_usd, on_demand_usd_per_hour=price)
    return offers, RunPlan(
        ladder=rungs_of_type(
            machine, dict.fromkeys(zones, price), offers, outputs.subnets, market="on_demand"
        ),
        run_limit=run_limit,
        hard_stop_usd=dollars(limit.duration.total_seconds(), price),
        budget_usd=budget_usd,
        estimated_usd=dollars(EXPECTED_SECONDS, price),
        place=account.place,
    )
