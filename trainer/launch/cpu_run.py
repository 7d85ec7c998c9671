"""Short runs on a cheap machine beside a scheduled training, planned: one that refreshes, checks and indexes
its data set before it, and one that scores its models after it.

The first comes if the job has a refresh script, or if the set has files without an index entry: control has
no pyarrow, and a GPU bills from its first second. Otherwise both are runs like any other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

from trainer.aws.stack_outputs import StackOutputs
from trainer.base.errors import ConfigError
from trainer.data.table import SUFFIXES
from trainer.job.job import Job
from trainer.launch.inputs import Input
from trainer.launch.machines import on_demand_price
from trainer.launch.plan import RunPlan, rungs_of_type
from trainer.launch.preflight import Offers, query_offers
from trainer.launch.work import Account
from trainer.machines.cpu_types import cpu_instance_type
from trainer.machines.planner import dollars
from trainer.runs.deadline import Cause, TimeLimit, time_limit


@dataclass(frozen=True, kw_only=True)
class CpuRun:
    """A kind of short run, on the stack's prepare_type."""

    name: Cause  # and of its deadline
    longest: timedelta  # as its template has it (infra/launch_templates.py)
    expected_seconds: float  # assumed

    def template(self, outputs: StackOutputs) -> str:
        """Return the id of its launch template."""
        return outputs.prepare_template if self.name == "prepare" else outputs.score_template


# Boot and packages 150 s, then a script that fetches some weeks; or the scores of a few models.
PREPARE = CpuRun(name="prepare", longest=timedelta(minutes=30), expected_seconds=300.0)
SCORE = CpuRun(name="score", longest=timedelta(hours=2), expected_seconds=600.0)


def unindexed(inputs: Iterable[Input]) -> list[Input]:
    """Return the files of a set that may hold candles and that no index entry describes."""
    return [item for item in inputs if not item.summary and item.key.lower().endswith(SUFFIXES)]


def needs_prepare_run(job: Job, inputs: Iterable[Input]) -> bool:
    """Return whether a scheduled run needs a prepare run first."""
    return bool(job.data.refresh or unindexed(inputs))


def plan_cpu_run(
    kind: CpuRun, account: Account, *, budget_usd: float, pinned_image: str = ""
) -> tuple[Offers, RunPlan]:
    """Query the account and plan a short run. Raises a TrainerError if its type is unknown or not offered."""
    outputs = account.outputs
    machine = cpu_instance_type(outputs.prepare_type)
    offers = query_offers(
        account.access,
        outputs=outputs,
        machines=[machine],
        spot=False,
        pinned_image=pinned_image,
        template=kind.template(outputs),
    )
    (machine,) = offers.priced.machines
    zones, price = offers.zones.get(machine.name, ()), on_demand_price(machine)
    if not zones or not price:
        why = "no zone of the stack offers it" if not zones else "its price is not known"
        do = "Set another prepare_type and run pulumi up."
        raise ConfigError(f"no {kind.name} run on {machine.name} in {outputs.region}", why=why, do=do)
    run_limit = TimeLimit(duration=kind.longest, cause=kind.name)
    limit = time_limit(run=run_limit, budget_usd=budget_usd, on_demand_usd_per_hour=price)
    return offers, RunPlan(
        ladder=rungs_of_type(
            machine, dict.fromkeys(zones, price), offers, outputs.subnets, market="on_demand"
        ),
        run_limit=run_limit,
        hard_stop_usd=dollars(limit.duration.total_seconds(), price),
        budget_usd=budget_usd,
        estimated_usd=dollars(kind.expected_seconds, price),
        place=account.place,
    )
