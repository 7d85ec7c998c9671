"""Tables of (record, observed, now) -> actions for runs of several nodes: all of a launch, or none."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.records import at, created, described, intent, only_store, rung, seen, starting
from trainer.aws.error_codes import NO_CLEAR_ANSWER
from trainer.runs.actions import (
    ArmKill,
    Close,
    DeletePlacementGroup,
    Terminate,
    Wait,
)
from trainer.runs.attempts import Launch
from trainer.runs.launching import attempt_deadline
from trainer.runs.observation import UNANSWERED, DescribedInstance, Observation
from trainer.runs.outcome import ending_of
from trainer.runs.reconcile import LONGEST_IN_USE, reconcile
from trainer.runs.record import InstanceSeen, RunRecord

THREE = {"num_nodes": 3}


def one(number: int, fleet: str = "fleet-1", **changed: Any) -> DescribedInstance:
    return described(instance_id=f"i-{number}", fleet=fleet, **changed)


def fleet(*numbers: int, **changed: Any) -> Observation:
    return Observation(instances=tuple(one(number, **changed) for number in numbers))


def partial(**changed: Any) -> Launch:
    values: dict[str, Any] = {
        "outcome": "refused",
        "error_code": "PartialFleet",
        "instance_ids": ("i-1", "i-2"),
    }
    return intent(**(values | {"called_at": at(1), "calls": 1} | changed))


def known(record: RunRecord, *states: str) -> tuple[InstanceSeen, ...]:
    return tuple(seen(state, instance_id=f"i-{number}") for number, state in enumerate(states, 1))


def settled(record: RunRecord, observed: Observation, now: Any = None) -> RunRecord:
    """Return the record with its instances as observed."""
    return only_store(reconcile(record, observed, now or at(3)))


def test_all_instances_of_one_fleet_answer_an_open_intent():
    call = intent(called_at=at(1), calls=1)
    record = settled(starting(call, **THREE), fleet(1, 2, 3))
    launch = only_store(reconcile(record, fleet(1, 2, 3), at(3))).last_launch
    assert (launch.outcome, launch.instance_ids) == ("created", ("i-1", "i-2", "i-3"))


def test_fewer_instances_answer_nothing_and_the_call_is_repeated():
    call = intent(called_at=at(1), calls=1)
    record = settled(starting(call, **THREE), fleet(1, 2))
    assert isinstance(reconcile(record, fleet(1, 2), at(3))[0], Wait)
    assert only_called(reconcile(record, fleet(1, 2), at(10))) == 2


def only_called(actions: tuple[Any, ...]) -> int:
    return next(action.launch.calls for action in actions if hasattr(action, "launch"))


def test_instances_of_two_fleets_never_make_one_set():
    call = intent(called_at=at(1), calls=2)
    mixed = Observation(instances=(one(1), one(2), one(3, fleet="fleet-2")))
    record = settled(starting(call, **THREE), mixed)
    assert isinstance(reconcile(record, mixed, at(3))[0], Wait)


def test_an_unanswered_call_that_made_fewer_closes_with_ids():
    call = intent(called_at=at(1), calls=2)
    late = at(1) + UNANSWERED
    record = settled(starting(call, **THREE), fleet(1, 2))
    record = only_store(reconcile(record, fleet(1, 2), late))
    launch = record.last_launch
    assert (launch.outcome, launch.error_code) == ("refused", NO_CLEAR_ANSWER)
    assert launch.instance_ids == ("i-1", "i-2") and "2 of 3 instances" in launch.error_message
    assert reconcile(record, fleet(1, 2), late)[0].instance_ids == ("i-1", "i-2")


def test_a_partial_fleet_is_ended_before_the_next_rung_is_asked():
    record = settled(starting(partial(), **THREE), fleet(1, 2))
    assert reconcile(record, fleet(1, 2), at(3)) == (
        Terminate(instance_ids=("i-1", "i-2"), why="the fleet is not whole"),
    )
    half = Observation(instances=(one(1, state="shutting-down"), one(2)))
    record = settled(record, half)
    assert reconcile(record, half, at(4))[0].instance_ids == ("i-2",)
    gone = fleet(1, 2, state="shutting-down")
    record = settled(record, gone)
    assert only_store(reconcile(record, gone, at(5))).last_launch.rung == 1


def test_an_instance_not_shown_yet_is_ended_by_its_id():
    record = settled(starting(partial(), **THREE), Observation())
    assert reconcile(record, Observation(), at(3))[0].instance_ids == ("i-1", "i-2")
    later = at(1) + UNANSWERED
    assert only_store(reconcile(record, Observation(), later)).last_launch.rung == 1


def test_instances_of_a_partial_fleet_have_no_word():
    record = starting(partial(), **THREE)
    assert record.working_ids == () and record.nodes == ()


@pytest.mark.parametrize("wait", [130, 290])
def test_a_partial_fleet_is_no_launcher_that_fell_silent(wait):
    record = starting(partial(), **THREE)
    assert ending_of(record, Observation(may_start=False), at(wait)) is None
    assert ending_of(record, Observation(may_start=False), at(wait + 300)).outcome == "interrupted"


def test_a_budget_counts_every_node():
    alone, three = (
        attempt_deadline(starting(budget_usd=1.0, num_nodes=number), rung(), at(0)) for number in (1, 3)
    )
    assert (three.at - at(0)) == (alone.at - at(0)) / 3 and three.cause == "budget"
    assert alone.at - at(0) == timedelta(minutes=12)


def test_a_placement_group_that_stays_in_use_keeps_no_run_open():
    record = starting(state="ending", outcome="stopped", ending_at=at(2), num_nodes=2, one_model=True)
    observed = Observation(models=())
    actions = reconcile(record, observed, at(3))
    assert [type(one) for one in actions] == [DeletePlacementGroup, Close]
    assert actions[0] == DeletePlacementGroup(name=f"mayfly-dev-{record.run_id}")
    later = reconcile(record, observed, at(2) + LONGEST_IN_USE)
    assert [type(one) for one in later] == [DeletePlacementGroup, Close] and not later[0].waits
    many = reconcile(replace(record, one_model=False), observed, at(3))
    assert [type(one) for one in many] == [Close]


def test_the_second_schedule_names_the_nodes_that_are_left():
    """One id that AWS has forgotten would fail its call for all of them."""
    three = created(instance_ids=("i-1", "i-2", "i-3"), kill_armed_at=at(6))
    record = starting(three, state="running", **THREE)
    record = only_store(reconcile(record, fleet(1, 2, 3), at(30)))
    one_lost = Observation(instances=(one(1), one(2, state="terminated"), one(3)))
    store, kill = reconcile(record, one_lost, at(100))
    assert kill == ArmKill(attempt=1, instance_ids=("i-1", "i-3"), at=three.deadline)
    assert len(reconcile(store.record, one_lost, at(101))) == 1
    all_lost = fleet(1, 2, 3, state="terminated")
    assert len(reconcile(store.record, all_lost, at(102))) == 1
