"""Ways to pay: from how many hours a month on which is cheapest, and what one machine can't do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.jobs import job_of
from tests.planned import offers_of, plan_of
from trainer.launch.pay import MONTH_HOURS, Way, _sentences, cheapest_by_hours, from_where, ways_to_pay
from trainer.machines.commitments import SAVINGS_PLAN, commitments, commitments_of
from trainer.machines.instances import catalogue
from trainer.machines.planner import workload

HOUR = {"run_seconds": 3600.0, "source": "a test"}
ON_DEMAND = Way(name="on demand", usd_per_hour=2.0, run_usd=2.0, **HOUR)
RESERVED = Way(name="reserved", month_usd=730.0, term_months=12, run_usd=0.0, is_one_machine=True, **HOUR)


def names(*ways: Way) -> list[tuple[float, str]]:
    return [(hours, way.name) for hours, way in cheapest_by_hours(ways, 1.0)]


def test_a_reservation_wins_from_its_share_of_the_month_on():
    assert names(ON_DEMAND, RESERVED) == [(0.0, "on demand"), (365.0, "reserved")]


def test_spot_below_the_reserved_price_always_wins():
    spot = Way(name="spot", usd_per_hour=0.9, run_usd=0.9, **HOUR)
    assert names(ON_DEMAND, RESERVED, spot) == [(0.0, "spot")]


def test_a_slow_machine_never_wins_beyond_its_own_hours():
    slow = {**HOUR, "run_seconds": 36_000.0}  # ten hours for what takes one: 73 runs a month
    own = Way(name="own", month_usd=100.0, run_usd=0.5, is_one_machine=True, **slow)
    back = (pytest.approx(73.0), "on demand")  # more than one machine can do
    assert names(ON_DEMAND, own) == [(0.0, "on demand"), (pytest.approx(100 / 1.5), "own"), back]
    dear = Way(name="own", month_usd=120.0, run_usd=0.5, is_one_machine=True, **slow)
    assert names(ON_DEMAND, dear) == [(0.0, "on demand")]  # 80 runs would pay, 73 are possible
    assert own.monthly_usd(74) is None and own.monthly_usd(73) == pytest.approx(136.5)


def test_a_slow_machine_is_cheapest_up_to_what_it_can_do():
    own = Way(name="own", run_usd=0.5, is_one_machine=True, run_seconds=36_000.0, source="a test")
    assert names(ON_DEMAND, own) == [(0.0, "own"), (pytest.approx(73.0), "on demand")]
    text = "Cheapest: own (one does 73 runs a month); from 73 h a month on (2.4 h a day, 73 runs) on demand."
    assert next(_sentences((ON_DEMAND, own), 1.0)) == text
    own = Way(name="own", run_usd=0.5, is_one_machine=True, **HOUR)
    assert from_where([ON_DEMAND, own], 1.0, "Cheapest") == "Cheapest: own, at any number of hours a month."


def test_a_machine_that_pays_from_the_first_run_on_says_one_run():
    own = Way(name="own", month_usd=52.0, run_usd=2.0, is_one_machine=True, **HOUR)
    dear = Way(name="on demand", usd_per_hour=68.0, run_usd=68.0, **HOUR)
    assert "(0.0 h a day, 1 run) own" in from_where([dear, own], 1.0, "Cheapest")
    nearly_free = replace(own, month_usd=6.0)
    assert "1 run) own" in from_where([dear, nearly_free], 1.0, "Cheapest")


def test_a_reserved_machine_pays_for_its_root_disk_while_it_runs():
    job = job_of(instance=("g5.xlarge",), max_duration="10h")
    taken = plan_of(job, workload(job, {"BTC-USD": 500_000}), offers_of("g5.xlarge")).first
    taken = replace(taken, machine=replace(taken.machine, price_usd_per_hour=1.006 + 0.04))
    pay = ways_to_pay(taken, (taken,), (), commitments_of("g5.xlarge"), disk_usd_per_hour=0.04)
    reserved = pay.ways[1]
    assert reserved.always_usd == pytest.approx(730 * (0.63378 + 0.04))
    assert reserved.run_usd == pytest.approx(pay.run_hours * 0.04)
    assert "from 460 h a month on" in pay.sentences[0]  # as without a disk: both ways pay for it


def test_a_way_without_a_price_is_named_whatever_others_have():
    job = job_of(instance=("g5.xlarge",), max_duration="10h")
    taken = plan_of(job, workload(job, {"BTC-USD": 500_000}), offers_of("g5.xlarge")).first
    reserved = commitments_of("g5.xlarge")[0]
    plan = replace(reserved, plan=SAVINGS_PLAN)
    absent = [
        ways_to_pay(taken, (taken,), (), known).missing[0].partition(": ")[2]
        for known in ((), (reserved,), (plan,), (reserved, plan))
    ]
    assert absent == ["spot, reserved, savings plans", "spot, savings plans", "spot, reserved", "spot"]


def test_every_commitment_is_of_a_known_type_and_below_its_price():
    known = catalogue()
    for one in commitments():
        price = known[one.instance_type].price_usd_per_hour
        assert price and 0.2 * price < one.usd_per_hour < price
    assert commitments_of("g5.xlarge")[0].title == "reserved, 1 year, no upfront"
    assert commitments_of("p5.48xlarge") == ()  # no source, no row
    assert pytest.approx(730) == MONTH_HOURS
