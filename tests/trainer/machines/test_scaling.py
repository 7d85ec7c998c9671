from __future__ import annotations

import pytest

from trainer.machines.instances import catalogue, instance_type
from trainer.machines.scaling import BUCKET_BYTES, Link, Together, link_of, speedup

LARGE = Together(weights=151_000_000, visits=2048.0)  # one step of 2,048 windows
NVSWITCH, PCIE = Link(name="NVSwitch", bus_gb_per_s=230.0), Link(name="PCIe", bus_gb_per_s=7.0)


def test_speed_up_follows_the_law_of_a_ring():
    # One GPU takes 8 s a step, 8 take 1 s: 1.057 GB travel in 4.6 ms behind 667 ms of backward, but for one
    # bucket.
    bucket = 2 * 7 / 8 * BUCKET_BYTES / 230e9
    by_switch = speedup(LARGE, devices=8, visits_per_second=256.0, link=NVSWITCH)
    assert by_switch == pytest.approx(8 / (1 + bucket))
    # Over PCIe, in bf16, 75.5 ms travel behind 6.67 ms.
    exposed = 2 * 7 / 8 * 302e6 / 7e9 - 2 / 3 * 0.01
    by_pcie = speedup(LARGE, devices=8, visits_per_second=25_600.0, link=PCIE)
    assert by_pcie == pytest.approx(0.08 / (0.01 + exposed))


def test_speed_up_grows_with_link_and_batch_up_to_the_gpus():
    links = [Link(name="x", bus_gb_per_s=rate) for rate in (1, 10, 100)]
    by_link = [speedup(LARGE, devices=4, visits_per_second=20_000, link=link) for link in links]
    assert by_link == sorted(by_link) and by_link[0] < 1 < by_link[-1] <= 4
    batches = [Together(weights=LARGE.weights, visits=visits) for visits in (64.0, 512.0, 4096.0)]
    by_batch = [speedup(one, devices=4, visits_per_second=20_000, link=PCIE) for one in batches]
    assert by_batch == sorted(by_batch)


def test_sharding_exchanges_more_and_cpu_ranks_nothing():
    whole, parts = (
        speedup(LARGE, devices=8, visits_per_second=50_000, link=NVSWITCH, sharded=sharded)
        for sharded in (False, True)
    )
    assert parts < whole
    assert speedup(LARGE, devices=1, visits_per_second=1.0, link=PCIE) == 1
    assert speedup(LARGE, devices=2, visits_per_second=1.0, link=None) == 2


def test_every_type_of_several_gpus_has_a_link():
    for machine in catalogue().values():
        link = link_of(machine)
        assert (link.bus_gb_per_s > 0) == (machine.num_workers > 1), machine.name
    assert link_of(instance_type("p4d.24xlarge")).bus_gb_per_s == pytest.approx(230)
    for name, link in {"g5.12xlarge": "PCIe", "p3.8xlarge": "NVLink", "p5.48xlarge": "NVSwitch"}.items():
        assert link_of(instance_type(name)).name == link
