from __future__ import annotations

from trainer.launch.ladder import Pools, build_ladder
from trainer.machines.instances import instance_type

SUBNETS = {"a": "subnet-a", "b": "subnet-b", "c": "subnet-c"}


def pools(name: str, prices: dict[str, float], market: str = "spot") -> Pools:
    machine = instance_type(name)
    return Pools(
        machine=machine,
        market=market,
        on_demand_usd_per_hour=machine.price_usd_per_hour or 0,
        price_by_zone=prices,
    )


def test_the_ladder_follows_the_users_order_of_types_and_prices_only_within_one():
    ladder = build_ladder(
        [pools("g5.12xlarge", {"a": 2.0, "b": 1.5, "c": 1.5}), pools("g6.12xlarge", {"c": 0.1})],
        subnets=SUBNETS,
        launch_template_id="lt-1",
        image_id="ami-1",
    )
    assert [(rung.instance_type, rung.availability_zone) for rung in ladder] == [
        ("g5.12xlarge", "b"),
        ("g5.12xlarge", "c"),
        ("g5.12xlarge", "a"),
        ("g6.12xlarge", "c"),
    ]


def test_a_rung_holds_all_that_its_request_needs():
    (rung,) = build_ladder(
        [pools("g5.12xlarge", {"a": 2.0})], subnets=SUBNETS, launch_template_id="lt-1", image_id="ami-1"
    )
    assert (rung.subnet_id, rung.launch_template_id, rung.image_id, rung.market) == (
        "subnet-a",
        "lt-1",
        "ami-1",
        "spot",
    )
    assert (rung.price_usd_per_hour, rung.on_demand_usd_per_hour, rung.gpu_count) == (2.0, 5.672, 4)
