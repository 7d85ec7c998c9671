"""Plans of several machines: time, dollars, quotas and refusals count all of them."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from tests.jobs import job_of
from tests.planned import offers_of, plan_of
from tests.records import rung
from trainer.aws.place import ACCOUNT
from trainer.aws.stack_outputs import StackOutputs
from trainer.base.errors import BudgetError, ConfigError, UsageError
from trainer.cli.views.drawing import drawn
from trainer.cli.views.plan import plan_view
from trainer.job.job import Job
from trainer.launch.inputs import ChosenCandles
from trainer.launch.plan import LaunchPlan
from trainer.launch.planning import plan_here
from trainer.launch.quotas import Quota
from trainer.launch.work import Refresh, TrainingWork
from trainer.machines.cpu_types import cpu_instance_type
from trainer.machines.instances import instance_type
from trainer.machines.planner import JOIN_SECONDS, workload
from trainer.machines.scaling import TCP, link_between, link_of
from trainer.machines.spot import expected_loss

TWENTY = {f"S{number:02}": 500_000 for number in range(20)}
ONE_MODEL: dict[str, Any] = {"model": "tcn", "distributed": "always", "batch": 4096}


def several(nodes: int, **changed: Any) -> Job:
    values: dict[str, Any] = {"instance": ("g6.xlarge",), "max_duration": "10h"}
    job = job_of(**(values | changed))
    return replace(job, machine=replace(job.machine, nodes=nodes))


def plan(job: Job, bars: dict[str, int] = TWENTY, *names: str) -> LaunchPlan:
    return plan_of(job, workload(job, bars), offers_of(*(names or job.machine.instance)))


def test_four_machines_share_models_at_four_times_the_price():
    alone, four = plan(several(1)).first, plan(several(4)).first
    assert four.time.phases.training == pytest.approx(alone.time.phases.training / 4)
    assert four.time.phases.boot == alone.time.phases.boot + JOIN_SECONDS
    assert four.usd_per_hour == 4 * alone.usd_per_hour
    assert four.dollars_p50 == pytest.approx(4 * four.seconds_p50 * alone.usd_per_hour / 3600)


def test_more_machines_than_models_stand_idle():
    assert "12 of 32 GPUs idle" in plan(several(32)).first.note


def test_machines_get_whole_studies_of_a_search():
    search = {"search.over": {"train.learning_rate": [1e-3, 1e-2]}, "search.method": "grid"}
    alone, four, three = (plan(several(nodes, **search)).first for nodes in (1, 4, 3))
    assert four.time.phases.training == pytest.approx(alone.time.phases.training / 4)
    assert three.time.phases.training == pytest.approx(alone.time.phases.training * 7 / 20), "of 20 models"
    few = {"A": 500_000, "B": 500_000}
    candles = ChosenCandles(timeframe="1m", bars=few, synthetic=False)
    work = TrainingWork(job=several(3, **search), code=None, candles=candles)  # type: ignore[arg-type]
    with pytest.raises(
        UsageError, match="3 machines for 2 models .the trials of a model are compared on one"
    ):
        work.weighed(offers_of("g6.xlarge"), SimpleNamespace(place=ACCOUNT, objects=None))  # type: ignore


def test_the_hard_stop_by_a_budget_counts_every_machine():
    alone = plan(several(1, budget=40.0))
    four = plan(several(4, budget=40.0, max_duration=""))
    assert four.hard_stop_usd <= 40.0
    price = four.ladder[0].on_demand_usd_per_hour
    by_money = plan(several(4, budget=4 * price, max_duration="10h"))
    assert by_money.hard_stop.duration == timedelta(hours=1) and by_money.hard_stop.cause == "budget"
    assert by_money.hard_stop_usd == pytest.approx(4 * price)
    assert alone.estimated_usd < four.estimated_usd


def test_a_budget_that_one_machine_keeps_is_refused_for_many():
    usd = plan(several(1)).first.dollars_p50
    assert plan(several(1, budget=usd + 0.01)).first
    with pytest.raises(BudgetError, match="too small"):
        plan(several(16, budget=usd + 0.01))


def test_the_view_has_nodes_and_the_price_of_all():
    job = several(3)
    made = plan(job)
    candles = ChosenCandles(timeframe="1m", bars=TWENTY, synthetic=False)
    text = " ".join(drawn(plan_view(made, job, candles)).split())
    assert "3 × g6.xlarge" in text and f"{3 * made.first.price_usd_per_hour:.2f}" in text
    assert "Nodes: 3 machines of one type in one zone, all or none; prices are of all of them" in text
    assert [one["nodes"] for one in made.to_dict()["candidates"]] == [3]
    alone = several(1)
    assert "Nodes:" not in drawn(plan_view(plan(alone), alone, candles))


def test_one_model_over_machines_is_priced_by_their_network():
    job = several(2, **ONE_MODEL, instance=("g5.12xlarge",))
    made = plan(job, {"BTC-USD": 3_700_000})
    alone = plan(several(1, **ONE_MODEL, instance=("g5.12xlarge",)), {"BTC-USD": 3_700_000})
    assert "8 GPUs of 2 machines" in made.first.note and TCP in made.first.note
    assert made.first.time.phases.training < alone.first.time.phases.training
    assert made.first.time.phases.training > alone.first.time.phases.training / 2
    machine = instance_type("g5.12xlarge")
    assert link_between(machine, 1) == link_of(machine)
    assert 0 < link_between(machine, 2).bus_gb_per_s < link_of(machine).bus_gb_per_s
    words = " ".join(drawn(plan_view(made, job, CANDLES)).split())
    assert "over TCP, not EFA" in words and "the loss of any ends the attempt" in words
    assert {row.devices for row in made.gpus} == {1, 2, 4, 8}  # rows are machines, not fleets


CANDLES = ChosenCandles(timeframe="1m", bars={"BTC-USD": 3_700_000}, synthetic=False)


def test_one_model_needs_types_of_a_placement_group():
    burstable = cpu_instance_type("t3.2xlarge")
    assert not burstable.can_be_grouped and instance_type("g5.12xlarge").can_be_grouped
    job = several(2, **ONE_MODEL, instance=("t3.2xlarge",))
    prices = offers_of("g6.xlarge").priced
    priced = replace(prices, machines=(burstable,))
    offers = offers_of("g6.xlarge", priced=priced, zones={"t3.2xlarge": ("us-east-1a",)}, image_line="")
    with pytest.raises(ConfigError, match="no cluster placement group takes it"):
        plan_of(job, workload(job, {"BTC-USD": 100_000}), offers)


def test_machines_without_a_shared_zone_are_refused_by_name():
    job = several(2)
    offers = offers_of("g6.xlarge", zones={}, elsewhere={"g6.xlarge": ("us-east-1e",)})
    with pytest.raises(ConfigError, match="offered only in us-east-1e, where the stack has no subnet"):
        plan_of(job, workload(job, TWENTY), offers)


def test_a_quota_counts_the_vcpus_of_all():
    quota = Quota(code="L-1", name="G", value=100, used=4)
    assert quota.allows(rung(), 2) and not quota.allows(rung(), 3)
    assert quota.refusal(rung(), 3) == "G (L-1) is 100 vCPUs, 4 in use; 3 g5.12xlarge need 144"


def test_one_model_ends_with_any_machine_many_with_the_head():
    one = plan(several(4, **ONE_MODEL, instance=("g5.12xlarge",)), {"BTC-USD": 3_700_000}).first
    assert (one.at_risk, plan(several(4)).first.at_risk) == (4, 1)
    known = {"seconds": 3600.0, "restart_seconds": 600.0, "keeps_checkpoints": True}
    assert expected_loss(**known, machines=4) == pytest.approx(4 * expected_loss(**known))


def test_a_machine_of_ones_own_is_one():
    work: Any = SimpleNamespace(job=several(2), num_nodes=2, pieces=tuple)
    with pytest.raises(
        UsageError, match=r"machine.nodes is 2 \(a run on a machine of your own has that one\)"
    ):
        plan_here(work)


def test_a_refresh_before_a_training_of_nodes_takes_one():
    code: Any = None
    assert Refresh(job=several(3), code=code, inputs=()).num_nodes == 1


def test_unreachable_machines_are_refused_with_the_setting():
    alone = StackOutputs(project="p", stack="s", bucket="b", launch_template="lt-1")
    assert alone.template_for(num_nodes=1, one_model=False) == "lt-1"
    with pytest.raises(ConfigError) as refused:
        alone.template_for(num_nodes=3, one_model=False)
    assert str(refused.value) == (
        "machine.nodes is 3, and the stack's machines don't reach one another (its setting cluster is false)."
        " Run pulumi config set cluster true, then pulumi up; or leave machine.nodes out."
    )
    cluster = replace(alone, cluster_templates={"pieces": "lt-2", "model": "lt-3"})
    assert cluster.template_for(num_nodes=3, one_model=False) == "lt-2"
    assert cluster.template_for(num_nodes=3, one_model=True) == "lt-3"
