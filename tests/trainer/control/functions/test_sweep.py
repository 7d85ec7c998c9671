"""The sweeper against the embedded AWS: what is due ends, what is not lives, and one failure keeps nothing
alive.
"""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, ReadTimeoutError

from tests.trainer.control.functions.conftest import GROUP, RUN
from trainer.aws.stack_outputs import metrics_namespace
from trainer.control.cloud import schedule_request
from trainer.control.functions import sweep as sweep_module
from trainer.control.functions.sweep import handler, overdue, sweep


class Broken:
    """A client of which one operation fails; everything else is the real one."""

    def __init__(self, client, operation, fails) -> None:
        self._client, self._operation, self._fails = client, operation, fails

    def __getattr__(self, name):
        if name != self._operation:
            return getattr(self._client, name)
        return self._call

    def _call(self, **arguments):
        if error := self._fails(arguments):
            raise error
        return getattr(self._client, self._operation)(**arguments)


def test_what_is_past_its_deadline_ends_and_what_is_not_lives(account):
    late, fine = account.launch(deadline=-timedelta(minutes=1)), account.launch(deadline=timedelta(minutes=1))
    summary = account.sweep()
    assert (account.state(late), account.state(fine)) == ("ended", "alive")
    assert list(summary.terminated) == [late]
    assert summary.seen == 2


def test_the_one_time_call_ends_its_own_run_at_the_deadline(account):
    other = account.launch(deadline=timedelta(0), run_id="20261120-120000-other-aaaa")
    mine = account.launch(deadline=timedelta(seconds=2))  # the schedule fires a little early by this clock
    summary = account.sweep(run_id=RUN)
    assert (account.state(mine), account.state(other)) == ("ended", "alive")
    assert list(summary.terminated) == [mine]


def test_a_deadline_that_was_moved_is_the_one_that_counts(account):
    mine = account.launch(deadline=timedelta(hours=1))
    account.sweep(run_id=RUN)
    assert account.state(mine) == "alive"


@pytest.mark.parametrize("deadline", [None, "soon"])
def test_an_instance_without_a_deadline_ends_after_a_minute(account, deadline):
    nameless = account.launch(deadline=deadline)
    account.sweep()
    assert account.state(nameless) == "alive"
    account.sweep(later=timedelta(minutes=2))
    assert account.state(nameless) == "ended"


def test_instances_of_others_are_not_touched(account):
    others = [
        account.launch(deadline=-timedelta(hours=1), project="somebody"),
        account.launch(deadline=-timedelta(hours=1), stack="prod"),
    ]
    assert account.sweep().seen == 0
    assert {account.state(instance_id) for instance_id in others} == {"alive"}


# botocore's exceptions for a time-out have a response, which is None
LOST = (EndpointConnectionError(endpoint_url="https://aws"), ReadTimeoutError(endpoint_url="https://aws"))


@pytest.mark.parametrize("error", LOST, ids=lambda error: type(error).__name__)
def test_while_s3_fails_leases_are_not_judged_but_deadlines_are(account, error):
    silent, late = account.launch(deadline=timedelta(days=1)), account.launch(deadline=-timedelta(minutes=1))
    account.beat(silent, account.now - timedelta(hours=1))
    down = Broken(account.s3, "get_object", lambda arguments: error)
    summary = account.sweep(clients=replace(account.clients, s3=down))
    assert (account.state(silent), account.state(late)) == ("alive", "ended")
    assert summary.lease_check.startswith("skipped") and not summary.failed


def test_while_s3_hangs_every_instance_past_its_deadline_ends(account):
    account.launch()
    late = account.launch(deadline=-timedelta(minutes=1))
    account.launch()

    class TimeIsOver(BaseException):
        """The function is ended: its time has run out."""

    clients = replace(account.clients, s3=Broken(account.s3, "get_object", lambda arguments: TimeIsOver()))
    with pytest.raises(TimeIsOver):
        account.sweep(clients=clients)
    assert account.state(late) == "ended"


SPOILED = [
    b'{"at": 5}',
    b'{"at": "2026-11-20T12:00:00Z", "lease_until": "9999-12-31T23:59:59Z"}',
    b'{"at": "0001-01-01T00:00:00+14:00"}',
    b"[" * 200_000,
    b"",
    b"\xff",
    b"x" * 10_000_000,
]


@pytest.mark.parametrize("body", SPOILED, ids=lambda body: str(body[:20]))
def test_a_spoiled_lease_counts_as_none_and_is_reported(account, body):
    spoiled = account.launch()
    account.s3.put_object(Bucket=account.settings.bucket, Key=account.lease(spoiled), Body=body)
    late = account.launch(deadline=-timedelta(minutes=1))
    summary = account.sweep()
    assert (account.state(spoiled), account.state(late)) == ("alive", "ended")
    assert (list(summary.spoiled), summary.failed, summary.lease_check) == ([spoiled], {}, "done")
    assert list(account.sweep(later=timedelta(minutes=16)).terminated) == [spoiled]


@pytest.mark.parametrize(
    ("code", "dies"),
    [
        ("InvalidObjectState", True),
        ("InvalidRequest", True),
        ("KeyTooLongError", True),
        ("InvalidURI", True),
        ("AccessDenied", False),
        ("KMS.DisabledException", False),
    ],
)
def test_a_lease_that_s3_refuses_spoils_one_instance_only(account, code, dies):
    ids = [account.launch() for _ in range(2)]
    key = account.lease(ids[0])

    def fails(arguments):  # for an archived object, one under its writer's KMS key, or tags that make no key
        return (
            ClientError({"Error": {"Code": code, "Message": "no"}}, "GetObject")
            if arguments["Key"] == key
            else None
        )

    clients = replace(account.clients, s3=Broken(account.s3, "get_object", fails))
    summary = account.sweep(clients=clients, later=timedelta(minutes=16))
    assert list(summary.spoiled) == [ids[0]] and summary.lease_check == "done"
    # where we may not read, the deadline stands
    assert sorted(summary.terminated) == sorted(ids if dies else ids[1:])


def test_an_instance_that_fails_the_sweeper_spoils_no_other(account, monkeypatch):
    first, late = account.launch(), account.launch(deadline=-timedelta(minutes=1))

    def judge(tags, launched_at, now):
        if f"{now + timedelta(hours=1):%Y-%m-%dT%H:%M:%SZ}" == tags["deadline"]:
            raise OverflowError("date value out of range")
        return overdue(tags, launched_at, now)

    monkeypatch.setattr(sweep_module, "overdue", judge)
    summary = account.sweep()
    assert summary.failed == {first: "OverflowError: date value out of range"}
    assert (list(summary.terminated), account.state(late)) == ([late], "ended")


def test_an_instance_that_cannot_be_ended_keeps_no_other_alive(account):
    ids = [account.launch(deadline=-timedelta(minutes=1)) for _ in range(3)]

    def fails(arguments):
        if arguments["InstanceIds"] == [ids[0]]:
            return ClientError(
                {"Error": {"Code": "UnauthorizedOperation", "Message": "no"}}, "TerminateInstances"
            )
        return None

    clients = replace(account.clients, ec2=Broken(account.ec2, "terminate_instances", fails))
    summary = account.sweep(clients=clients)
    assert [account.state(instance_id) for instance_id in ids] == ["alive", "ended", "ended"]
    assert list(summary.failed) == [ids[0]]


def test_an_instance_with_termination_protection_ends_as_well(account):
    late, living = account.launch(deadline=-timedelta(minutes=1)), account.launch()
    for instance_id in (late, living):
        account.ec2.modify_instance_attribute(InstanceId=instance_id, DisableApiTermination={"Value": True})
    dry = sweep(account.settings, account.clients, now=account.now, dry_run=True)
    assert (list(dry.terminated), account.state(late)) == ([late], "alive")
    with pytest.raises(ClientError, match="OperationNotPermitted"):
        account.ec2.terminate_instances(InstanceIds=[late])
    summary = account.sweep()
    assert (list(summary.terminated), summary.failed, account.state(late)) == ([late], {}, "ended")
    with pytest.raises(ClientError, match="OperationNotPermitted"):  # nothing changed about another one
        account.ec2.terminate_instances(InstanceIds=[living])


def test_the_sweepers_role_may_lift_termination_protection(stack):
    access, outputs = stack
    ec2 = access.client("ec2")
    tags = {
        "project": outputs.project,
        "stack": outputs.stack,
        "run_id": RUN,
        "deadline": "2020-01-01T00:00:00Z",
    }
    answer = ec2.run_instances(
        ImageId=ec2.describe_images(Owners=["amazon"])["Images"][0]["ImageId"],
        InstanceType="g5.xlarge",
        MinCount=1,
        MaxCount=1,
        DisableApiTermination=True,
        TagSpecifications=[
            {
                "ResourceType": "instance",
                "Tags": [{"Key": key, "Value": value} for key, value in tags.items()],
            }
        ],
    )
    late = answer["Instances"][0]["InstanceId"]
    answer = access.client("lambda").invoke(FunctionName=outputs.sweeper_arn, Payload=b"{}")
    summary = json.loads(answer["Payload"].read())
    assert "FunctionError" not in answer and list(summary["terminated"]) == [late]


def test_an_instance_that_is_not_found_any_more_counts_as_ended(account):
    gone = account.launch(deadline=-timedelta(minutes=1))
    missing = ClientError(
        {"Error": {"Code": "InvalidInstanceID.NotFound", "Message": "gone"}}, "TerminateInstances"
    )
    clients = replace(
        account.clients, ec2=Broken(account.ec2, "terminate_instances", lambda arguments: missing)
    )
    summary = account.sweep(clients=clients)
    assert list(summary.terminated) == [gone]
    assert summary.failed == {}


def test_schedules_of_ended_instances_are_deleted(
    account,
):
    account.beat(account.launch(), account.now + timedelta(minutes=16))
    living, ended = f"mayfly-{RUN}-kill-1", "mayfly-20261119-120000-old-aaaa-kill-1"
    looks = "mayfly-20261119-120000-old-aaaa-sweep"  # an unanswered launch may still bring an instance
    trust = {
        "Effect": "Allow",
        "Principal": {"Service": "scheduler.amazonaws.com"},
        "Action": "sts:AssumeRole",
    }
    policy = json.dumps({"Version": "2012-10-17", "Statement": [trust]})
    role = account.access.client("iam").create_role(RoleName="scheduler", AssumeRolePolicyDocument=policy)[
        "Role"
    ]["Arn"]
    for name in (living, ended, looks, "mayfly-dev-sweep"):  # the last one is the standing schedule
        request = schedule_request(
            name=name,
            group=GROUP,
            at=account.now + timedelta(days=1),
            target_arn="arn:aws:scheduler:::aws-sdk:ec2:terminateInstances",
            role_arn=role,
            target_input={"InstanceIds": ["i-0123456789abcdef0"]},
        )
        account.scheduler.create_schedule(**request)
    assert account.sweep(later=timedelta(minutes=14)).deleted_schedules == []
    slow = Broken(account.scheduler, "delete_schedule", lambda arguments: LOST[1])
    clients = replace(account.clients, scheduler=slow)
    assert account.sweep(clients=clients, later=timedelta(minutes=16)).deleted_schedules == []
    assert account.sweep(later=timedelta(minutes=16)).deleted_schedules == [ended]
    assert {item["Name"] for item in account.scheduler.list_schedules(GroupName=GROUP)["Schedules"]} == {
        living,
        looks,
        "mayfly-dev-sweep",
    }


def test_the_handler_answers_a_summary_and_fails_on_a_failure(account, monkeypatch):
    late = account.launch(deadline=-timedelta(minutes=1))
    names = {"PROJECT": "mayfly", "STACK": "dev", "BUCKET": account.settings.bucket, "SCHEDULE_GROUP": GROUP}
    for name, value in names.items():
        monkeypatch.setenv(name, value)
    denied = ClientError({"Error": {"Code": "UnauthorizedOperation", "Message": "no"}}, "TerminateInstances")
    broken = Broken(account.ec2, "terminate_instances", lambda arguments: denied)
    clients = {
        "cloudwatch": account.cloudwatch,
        "ec2": broken,
        "s3": account.s3,
        "scheduler": account.scheduler,
    }
    monkeypatch.setattr(sweep_module.boto3, "client", lambda service, config=None: clients[service])
    with pytest.raises(RuntimeError, match=late):
        handler({}, None)
    clients["ec2"] = account.ec2
    assert list(handler(None, None)["terminated"]) == [late]


@pytest.mark.parametrize("text", ["2026-11-20T12:00:00Z", "2026-11-20T12:00:00", "2026-11-20T13:00:00+01:00"])
def test_a_deadline_counts_in_utc_however_it_is_written(text):
    noon = datetime(2026, 11, 20, 12, 0, 0, tzinfo=timezone.utc)
    assert overdue({"deadline": text}, noon - timedelta(hours=1), noon)
    assert not overdue({"deadline": text}, noon - timedelta(hours=1), noon - timedelta(seconds=6))


def test_a_sweep_publishes_its_metrics(account):
    published = []

    class CloudWatch:
        def put_metric_data(self, **given):
            published.append(given)

    clients = replace(account.clients, cloudwatch=CloudWatch())
    account.launch(deadline=-timedelta(minutes=7))
    account.sweep(clients=clients)
    assert published[0]["Namespace"] == metrics_namespace("mayfly", "dev")
    assert {one["MetricName"]: one["Value"] for one in published[0]["MetricData"]} == {
        "SweepsDone": 1.0,
        "OverdueMinutes": 7.0,
    }
    account.sweep(clients=clients, run_id=RUN)
    assert len(published) == 1  # of the stack's sweeps alone


def test_a_sweep_without_its_metrics_ends_what_is_due(account):
    refused = ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, "PutMetricData")
    late = account.launch(deadline=-timedelta(minutes=1))
    clients = replace(
        account.clients, cloudwatch=Broken(account.cloudwatch, "put_metric_data", lambda arguments: refused)
    )
    assert list(account.sweep(clients=clients).terminated) == [late]


def test_a_dry_run_names_what_would_end_and_changes_nothing(account):
    late, fine = account.launch(deadline=-timedelta(minutes=1)), account.launch(deadline=timedelta(hours=5))
    arguments = {"chores": False, "now": account.now + timedelta(hours=4)}
    foreseen = sweep(account.settings, account.clients, dry_run=True, **arguments)
    assert set(foreseen.terminated) == {late, fine}, "the other one never sent a heartbeat"
    assert (account.state(late), account.state(fine)) == ("alive", "alive")
    done = sweep(account.settings, account.clients, **arguments)
    assert done.terminated == foreseen.terminated
    assert (account.state(late), account.state(fine)) == ("ended", "ended")


def test_a_sweep_from_a_desk_leaves_schedules_and_metrics_alone(account):
    def refuse(arguments):
        return AssertionError("a desk may not do this")

    clients = replace(
        account.clients,
        cloudwatch=Broken(account.cloudwatch, "put_metric_data", refuse),
        scheduler=Broken(account.scheduler, "get_paginator", lambda arguments: refuse({})),
    )
    summary = sweep(account.settings, clients, now=account.now, chores=False)
    assert (summary.seen, summary.failed) == (0, {})
