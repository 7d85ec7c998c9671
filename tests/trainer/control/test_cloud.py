"""boto3's side of the Cloud protocol, against the embedded AWS with the program applied."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest

from tests.records import intent
from trainer.aws.objects import open_objects
from trainer.aws.stack import read_stack
from trainer.base.errors import ConfigError
from trainer.control.cloud import AwsCloud, schedule_request
from trainer.control.drive import drive, start
from trainer.control.fleet import create_fleet_request
from trainer.runs.attempts import Attempt
from trainer.runs.record import new_run_id
from trainer.runs.store import create_record

AT = datetime(2030, 1, 2, 3, 4, tzinfo=timezone.utc)


def test_a_one_time_schedule_deletes_itself():
    request = schedule_request(
        name="n", group="g", at=AT, target_arn="t", role_arn="r", target_input={"run_id": "x"}
    )
    assert request == {
        "Name": "n",
        "GroupName": "g",
        "ScheduleExpression": "at(2030-01-02T03:04:00)",
        "ScheduleExpressionTimezone": "UTC",
        "FlexibleTimeWindow": {"Mode": "OFF"},
        "ActionAfterCompletion": "DELETE",
        "Target": {
            "Arn": "t",
            "RoleArn": "r",
            "Input": '{"run_id": "x"}',
            "RetryPolicy": {"MaximumRetryAttempts": 30, "MaximumEventAgeInSeconds": 3600},
        },
    }


@pytest.fixture(scope="module")
def applied(aws_server):
    """One account with the program applied, for all of these tests; each has a run of its own."""
    access = aws_server.account()
    aws_server.apply_program(access)
    return access, read_stack(access, stack="dev")


@pytest.fixture
def armed(applied, make_record, rungs_of):
    """A stack's cloud, and a run on a ladder of two zones."""
    access, outputs = applied
    now = datetime.now(timezone.utc)
    record = make_record(
        run_id=new_run_id("crypto", now),
        bucket=outputs.bucket,
        ladder=rungs_of(access, outputs),
        preflight_at=now,
        created_at=now,
        deadline=now + timedelta(hours=1),
        place="rehearsal",
    )
    return AwsCloud(access, outputs), access, outputs, record


def with_intent(record, **fields):
    launch = intent(**fields, deadline=record.deadline.replace(microsecond=0), intended_at=record.created_at)
    return replace(record, attempts=(Attempt(number=1, launches=(launch,)),)), launch


def test_an_instance_is_created_once_and_seen_to_end(armed):
    cloud, _, _, record = armed
    record, launch = with_intent(record)
    request = create_fleet_request(record, record.ladder[0], launch)
    first, second = cloud.create_fleet(request=request), cloud.create_fleet(request=request)
    assert first.kind == "created" and first.instance_ids == second.instance_ids
    (seen,) = cloud.instances(run_id=record.run_id)
    assert (seen.attempt, seen.instance_type, seen.market) == (1, "g5.12xlarge", "on_demand")
    assert seen.state in ("pending", "running") and seen.ended_at is None
    cloud.terminate(instance_ids=first.instance_ids)
    (seen,) = cloud.instances(run_id=record.run_id)
    assert seen.state in ("shutting-down", "terminated")
    assert seen.ended_at is not None and seen.ended_at >= seen.launched_at
    # one that was never there counts as gone
    cloud.terminate(instance_ids=("i-0123456789abcdef0", *first.instance_ids))


def test_an_instance_of_another_stack_is_no_runs_of_this_one(armed):
    """Its launchers choose their tags, and a run that counted it could not be seen to end: no role of this
    stack may terminate it.
    """
    cloud, access, _, record = armed
    ec2, ids = access.client("ec2"), []
    for tags in ({"project": "mayfly", "stack": "other"}, {"project": "mayfly", "stack": "dev"}, {}):
        named = [{"Key": key, "Value": value} for key, value in {**tags, "run_id": record.run_id}.items()]
        answer = ec2.run_instances(
            ImageId=ec2.describe_images(Owners=["amazon"])["Images"][0]["ImageId"],
            InstanceType="g5.xlarge",
            MinCount=1,
            MaxCount=1,
            TagSpecifications=[{"ResourceType": "instance", "Tags": named}],
        )
        ids.append(answer["Instances"][0]["InstanceId"])
    seen = cloud.instances(run_id=record.run_id)
    assert {one.instance_id for one in seen} == set(ids[1:]), "one whose tags were removed still counts"
    ec2.terminate_instances(InstanceIds=ids)


def test_a_schedule_is_armed_moved_read_and_deleted(armed):
    cloud, access, outputs, _ = armed
    name = "mayfly-20261120-120000-crypto-k3v9-sweep"
    assert cloud.scheduled(name=name) is None
    cloud.arm_sweep(name=name, run_id="r", at=AT)
    cloud.arm_sweep(name=name, run_id="r", at=AT + timedelta(hours=1))
    assert cloud.scheduled(name=name) == AT + timedelta(hours=1)
    target = access.client("scheduler").get_schedule(Name=name, GroupName=outputs.schedule_group)["Target"]
    assert (target["Arn"], target["Input"]) == (outputs.sweeper_arn, '{"run_id": "r"}')
    cloud.arm_kill(name=name, instance_ids=("i-1",), at=AT)
    target = access.client("scheduler").get_schedule(Name=name, GroupName=outputs.schedule_group)["Target"]
    assert target["Arn"] == "arn:aws:scheduler:::aws-sdk:ec2:terminateInstances"
    assert target["Input"] == '{"InstanceIds": ["i-1"]}'
    cloud.delete_schedule(name=name)
    cloud.delete_schedule(name=name)
    assert cloud.scheduled(name=name) is None


@pytest.mark.parametrize(("second", "fires"), [(0, "12:00:00"), (1, "12:01:00"), (59.5, "12:01:00")])
def test_schedules_fire_at_a_full_minute_and_never_early(second, fires):
    at = datetime(2026, 11, 20, 12, tzinfo=timezone.utc) + timedelta(seconds=second)
    local = at.astimezone(timezone(timedelta(hours=5, minutes=30)))
    for moment in (at, local):
        request = schedule_request(
            name="n", group="g", at=moment, target_arn="a", role_arn="r", target_input={}
        )
        assert request["ScheduleExpression"] == f"at(2026-11-20T{fires})"


def test_without_a_schedule_group_nothing_is_launched(armed):
    cloud, access, outputs, record = armed
    broken = replace(outputs, schedule_group="no-such-group")
    with pytest.raises(ConfigError, match="cannot arm"):
        AwsCloud(access, broken).arm_sweep(name="n", run_id="r", at=AT)
    create_record(open_objects(access, outputs.bucket), record)
    receipt = drive(AwsCloud(access, broken), record.run_id, poll_seconds=access.place.poll_seconds)
    assert (receipt["state"], receipt["exit_code"], receipt["instances"]) == ("failed", 103, [])
    assert "cannot arm" in receipt["error"]["what"]
    assert cloud.instances(run_id=record.run_id) == ()


def test_what_a_run_leaves_is_seen_by_its_tag(armed, aws_server):
    cloud, access, outputs, record = armed
    aws_server.world(access).full.clear()
    record, launch = with_intent(replace(record, run_id="20261120-120000-left-aaaa"), token="left")
    answer = cloud.create_fleet(request=create_fleet_request(record, record.ladder[0], launch))
    named = {"run_id": record.run_id, "instance_ids": answer.instance_ids}
    assert {item.kind for item in cloud.left(**named)} == {"volume", "interface"}
    assert cloud.left(run_id="20261120-120000-other-aaaa", instance_ids=("i-0123456789abcdef0",)) == ()
    cloud.terminate(instance_ids=answer.instance_ids)


def test_full_pools_are_walked_through_and_the_end_is_exit_101(armed, aws_server):
    _, access, outputs, record = armed
    create_record(open_objects(access, outputs.bucket), record)
    aws_server.world(access).fill(instance_type="g5.12xlarge")
    receipt = drive(AwsCloud(access, outputs), record.run_id, poll_seconds=access.place.poll_seconds)
    assert (receipt["state"], receipt["exit_code"]) == ("failed", 101)
    assert all(rung.availability_zone in receipt["error"]["why"] for rung in record.ladder)
    assert (
        access.client("scheduler").list_schedules(
            GroupName=outputs.schedule_group, NamePrefix=f"mayfly-{record.run_id}"
        )["Schedules"]
        == []
    )


def test_an_instance_that_could_not_start_fails_with_its_reason(armed, aws_server):
    _, access, outputs, record = armed
    create_record(open_objects(access, outputs.bucket), record)
    world = aws_server.world(access)
    world.full.clear()
    world.end_next_start("Client.InternalError", "Client error on launch")
    receipt = drive(AwsCloud(access, outputs), record.run_id, poll_seconds=access.place.poll_seconds)
    assert (receipt["state"], receipt["exit_code"]) == ("failed", 103)
    assert receipt["error"]["why"] == "Client.InternalError" and "EBS encryption" in receipt["error"]["do"]


def test_throttled_and_lost_calls_make_one_instance(armed, aws_server):
    cloud, access, outputs, record = armed
    create_record(open_objects(access, outputs.bucket), record)
    world = aws_server.world(access)
    world.full.clear()  # other tests of this account fill pools
    world.fail_next("CreateFleet", "RequestLimitExceeded", status=503)
    world.fail_next("CreateFleet", "InternalError", after=True)
    left = start(AwsCloud(access, outputs), record.run_id, poll_seconds=access.place.poll_seconds)
    instances = cloud.instances(run_id=record.run_id)
    cloud.terminate(instance_ids=tuple(instance.instance_id for instance in instances))
    throttled, launch = left.attempts[0].launches
    assert (throttled.error_code, throttled.calls, throttled.is_open) == ("RequestLimitExceeded", 1, False)
    assert left.state == "running"
    assert tuple(instance.instance_id for instance in instances) == launch.instance_ids
    assert len(instances) == 1 and throttled.rung == launch.rung
