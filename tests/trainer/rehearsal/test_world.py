"""The world by itself: no server, no moto, time passed in."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from trainer.rehearsal.schedule_expressions import parse
from trainer.rehearsal.world import AwsError, Delays, Instance, StoredSchedule, World

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=timezone.utc)


def later(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def add(world: World, instance_id: str = "i-1", *, behavior: str = "terminate", **tags: str) -> Instance:
    description = {
        "InstanceId": instance_id,
        "InstanceType": "g5.xlarge",
        "Placement": {"AvailabilityZone": "us-east-1a"},
        "Tags": [{"Key": key, "Value": value} for key, value in tags.items()],
    }
    return world.add(description, reservation_id="r-1", user_data=b"", shutdown_behavior=behavior, now=NOW)


@pytest.fixture
def world() -> World:
    return World(delays=Delays(pending_seconds=20, shutting_down_seconds=40))


def test_states_take_their_time(world: World) -> None:
    instance = add(world)
    assert [instance.state(later(seconds)) for seconds in (0, 19, 20)] == ["pending", "pending", "running"]
    world.terminate(["i-1"], later(100))
    assert [instance.state(later(seconds)) for seconds in (100, 139, 140)] == [
        "shutting-down",
        "shutting-down",
        "terminated",
    ]


def test_an_instance_comes_to_run_once(world: World) -> None:
    add(world)
    assert world.due_to_start(later(19)) == []
    assert [one.id for one in world.due_to_start(later(20))] == ["i-1"]
    assert world.due_to_start(later(21)) == []


def test_an_instance_ended_while_pending_never_runs(world: World) -> None:
    add(world)
    world.terminate(["i-1"], later(5))
    assert world.due_to_start(later(30)) == []


def test_an_instance_is_not_gone_before_its_processes_are(world: World) -> None:
    instance = add(world)
    instance.occupied = True
    world.terminate(["i-1"], later(30))
    assert instance.state(later(1000)) == "shutting-down"
    world.vacated("i-1", later(1000))
    assert instance.state(later(1000)) == "terminated"


def test_terminating_twice_changes_nothing(world: World) -> None:
    add(world)
    world.terminate(["i-1"], later(30))
    ((instance, before),) = world.terminate(["i-1"], later(200))
    assert before == "terminated"
    assert instance.terminated_at == later(70)


def test_one_unknown_id_fails_the_whole_call(world: World) -> None:
    instance = add(world)
    with pytest.raises(AwsError, match="i-unknown") as failed:
        world.terminate(["i-1", "i-unknown"], later(30))
    assert failed.value.code == "InvalidInstanceID.NotFound"
    assert instance.state(later(30)) == "running"


def test_poweroff_terminates_where_the_template_says_so(world: World) -> None:
    instance = add(world)
    world.power_off("i-1", later(30))
    shown = world.describe(instance, later(80))
    assert shown["State"] == {"Code": 48, "Name": "terminated"}
    assert shown["StateReason"]["Code"] == "Client.InstanceInitiatedShutdown"


def test_poweroff_stops_where_the_template_says_nothing(world: World) -> None:
    instance = add(world, behavior="stop")
    world.power_off("i-1", later(30))
    assert instance.state(later(1000)) == "stopped"
    world.terminate(["i-1"], later(1000))
    assert instance.state(later(1040)) == "terminated"


def test_terminated_instances_are_shown_for_an_hour(world: World) -> None:
    add(world)
    world.terminate(["i-1"], NOW)
    assert [one.id for one in world.find(now=later(3600))] == ["i-1"]
    assert world.find(now=later(3700)) == []
    with pytest.raises(AwsError, match="does not exist"):
        world.terminate(["i-1"], later(3700))


def test_a_repeated_token_gets_the_first_answer(world: World) -> None:
    calls: list[int] = []

    def create() -> dict[str, Any]:
        calls.append(1)
        return {"FleetId": f"fleet-{len(calls)}"}

    first = world.once("CreateFleet", {"ClientToken": "t", "Type": "instant"}, create)
    assert world.once("CreateFleet", {"ClientToken": "t", "Type": "instant"}, create) == first
    assert world.once("CreateFleet", {"Type": "instant"}, create) != first
    with pytest.raises(AwsError) as failed:
        world.once("CreateFleet", {"ClientToken": "t", "Type": "maintain"}, create)
    assert failed.value.code == "IdempotentParameterMismatch"
    assert str(failed.value).endswith("those of a previous request (t).")
    assert len(calls) == 2


def test_a_token_whose_call_failed_can_be_tried_again(world: World) -> None:
    def refuse() -> dict[str, Any]:
        raise AwsError("InsufficientInstanceCapacity", "none", 500)

    with pytest.raises(AwsError):
        world.once("RunInstances", {"ClientToken": "t"}, refuse)
    assert world.once("RunInstances", {"ClientToken": "t"}, lambda: {"ok": True}) == {"ok": True}


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("tag:run_id", ["r1"], ["i-1"]),
        ("tag:run_id", ["r*"], ["i-1", "i-2"]),
        ("tag-key", ["deadline"], ["i-2"]),
        ("instance-state-name", ["shutting-down"], ["i-2"]),
        ("instance-state-name", ["pending", "running"], ["i-1"]),
        ("availability-zone", ["us-east-1b"], []),
    ],
)
def test_filters_see_tags_and_the_state_of_the_moment(
    world: World, name: str, values: list[str], expected: list[str]
) -> None:
    add(world, "i-1", run_id="r1")
    add(world, "i-2", run_id="r2", deadline="2026-11-20T13:00:00Z")
    world.terminate(["i-2"], later(30))
    found = world.find(filters=[{"Name": name, "Values": values}], now=later(31))
    assert [one.id for one in found] == expected


def test_an_unknown_filter_is_an_error(world: World) -> None:
    add(world)
    with pytest.raises(AwsError, match="tags:run_id"):
        world.find(filters=[{"Name": "tags:run_id", "Values": ["r1"]}], now=NOW)


def schedule(world: World, text: str, *, name: str = "s") -> None:
    own: dict[str, Any] = {"enabled": True, "delete_after_completion": True, "start": NOW, "target": {}}
    world.put_schedule(StoredSchedule(group="g", name=name, expression=parse(text), **own))


def test_a_one_time_schedule_fires_once_and_vanishes(world: World) -> None:
    schedule(world, "rate(2 minutes)", name="standing")
    assert not world.is_expecting()
    world.delete_schedule("g", "standing")
    schedule(world, "at(2026-11-20T12:01:00)")
    assert world.fire_due(later(59)) == [] and world.is_expecting()
    (firing,) = world.fire_due(later(61))
    assert not world.is_expecting()
    assert (firing.at, firing.completed) == (later(60), True)
    assert world.fire_due(later(62)) == []
    assert world.schedules == {}


def test_a_rate_fires_again_and_stays(world: World) -> None:
    schedule(world, "rate(2 minutes)")
    assert len(world.fire_due(later(121))) == 1
    assert world.fire_due(later(122)) == []
    assert len(world.fire_due(later(241))) == 1


def test_a_deleted_schedule_does_not_fire(world: World) -> None:
    schedule(world, "rate(2 minutes)", name="a")
    schedule(world, "rate(2 minutes)", name="b")
    world.delete_schedule("g", "a")
    assert [one.name for one in world.fire_due(later(121))] == ["b"]
