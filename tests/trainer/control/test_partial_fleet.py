"""Launches of several nodes against a cloud in memory: whole fleets, and fleets of two of three."""

from __future__ import annotations

from datetime import timedelta

import pytest

from trainer.base.errors import ConfigError
from trainer.control.drive import start, step
from trainer.control.fleet import FleetAnswer
from trainer.runs.store import read_record

UNCLEAR = FleetAnswer(kind="unclear", of_the_call=True, code="ReadTimeoutError", message="no answer")


def started(cloud, record):
    return start(cloud, record.run_id, poll_seconds=5.0, sleep=cloud.sleep)


def test_a_whole_fleet_is_named_in_order(make_cloud):
    cloud, record = make_cloud(num_nodes=3)
    record = started(cloud, record)
    assert record.working_ids == ("i-0000", "i-0001", "i-0002") and record.state == "running"
    assert len(record.nodes) == len(cloud.alive()) == 3 and len(cloud.fleets) == 1


def test_two_of_three_are_ended_and_the_ladder_goes_on(make_cloud):
    cloud, record = make_cloud(num_nodes=3)
    cloud.parts = [2]
    record = started(cloud, record)
    first, second = record.attempt.launches
    assert (first.outcome, first.error_code, first.instance_ids) == (
        "refused", "PartialFleet", ("i-0000", "i-0001"),
    )  # fmt: skip
    assert (second.outcome, second.rung, len(second.instance_ids)) == ("created", 1, 3)
    calls = cloud.done()
    again = len(calls) - 1 - calls[::-1].index("create_fleet")
    assert calls.index("create_fleet") < calls.index("terminate") < again
    assert cloud.alive() == list(second.instance_ids)


def test_a_lost_answer_adopts_the_whole_fleet_by_its_tag(make_cloud):
    cloud, record = make_cloud(num_nodes=3)
    cloud.answers = [UNCLEAR] * 2
    record = started(cloud, record)
    assert len(record.working_ids) == 3 and len(cloud.fleets) == 1


def test_a_lost_answer_of_two_of_three_is_ended_after_the_look(make_cloud):
    cloud, record = make_cloud(num_nodes=3)
    cloud.answers, cloud.parts = [UNCLEAR] * 2, [2]
    record = started(cloud, record)
    first, second = record.attempt.launches
    assert first.instance_ids == ("i-0000", "i-0001") and first.had_no_answer
    assert cloud.alive() == list(second.instance_ids) == ["i-0002", "i-0003", "i-0004"]


@pytest.mark.parametrize("kill_at", range(1, 31))
def test_a_launcher_killed_anywhere_leaves_one_fleet_at_most(make_cloud, killed, kill_at):
    """The next command goes on, and never more than three instances do the run's work."""
    cloud, record = make_cloud(num_nodes=3)
    cloud.parts, cloud.kill_at = [2], kill_at
    try:
        started(cloud, record)
    except killed:
        cloud.kill_at = None
    while read_record(cloud.objects, record.run_id)[0].state == "starting":
        if not step(cloud, record.run_id).moved:
            cloud.sleep(5)
    record = read_record(cloud.objects, record.run_id)[0]
    assert cloud.alive() == list(record.working_ids) and len(record.working_ids) == 3


def test_nodes_of_one_model_share_a_placement_group(make_cloud):
    cloud, record = make_cloud(num_nodes=2, one_model=True)
    started(cloud, record)
    assert cloud.groups == {f"mayfly-dev-{record.run_id}"}
    (request,) = cloud.requests.values()
    override = request["LaunchTemplateConfigs"][0]["Overrides"][0]
    assert override["Placement"] == {"GroupName": f"mayfly-dev-{record.run_id}"}
    while read_record(cloud.objects, record.run_id)[0].state != "closed":
        if not step(cloud, record.run_id).moved:
            cloud.sleep(5)
    assert cloud.groups == set() and cloud.alive() == [] and cloud.schedules == {}


def test_a_group_in_use_delays_the_close_by_half_an_hour(make_cloud):
    cloud, record = make_cloud(num_nodes=2, one_model=True)
    started(cloud, record)

    def in_use(*, name: str) -> None:
        raise ConfigError(f"{name} is in use")

    cloud.delete_placement_group = in_use
    while read_record(cloud.objects, record.run_id)[0].state != "closed":
        if not step(cloud, record.run_id).moved:
            cloud.sleep(60)
    closed = read_record(cloud.objects, record.run_id)[0]
    assert timedelta(minutes=29) < closed.closed_at - closed.ending_at < timedelta(minutes=33)
