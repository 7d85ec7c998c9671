"""Retries and dead letters of functions' events and of schedules' targets, and the rights of their roles."""

from __future__ import annotations

import json
from typing import Any

import pytest
from botocore.exceptions import ClientError

from infra import policies
from tests.aws import retries
from tests.aws.account import CheckedAccount
from tests.aws.clock import StoppedClock
from tests.aws.queues import new_queue
from tests.aws.server import CheckedAws
from tests.trainer.rehearsal.test_lambdas import ECHO, NOON, create, invoke
from tests.trainer.rehearsal.test_lambdas import role as role
from tests.trainer.rehearsal.test_scheduling import TERMINATE, fire, names
from tests.trainer.rehearsal.test_scheduling import cloud as cloud
from tests.trainer.rehearsal.test_scheduling import create as create_schedule
from trainer.aws.access import Access
from trainer.rehearsal import lambdas

FAILING = "def handler(event, context):\n    print(context.aws_request_id)\n    raise KeyError('bucket')\n"


def test_a_failed_event_is_retried_and_then_a_dead_letter(
    aws_server: CheckedAws, access: Access, role: str
) -> None:
    create(access, role, FAILING)
    cloud, sqs, iam = aws_server.cloud(access), access.client("sqs"), access.client("iam")
    cloud.clock = StoppedClock(NOON)
    url, arn = new_queue(access, "dead-letters")
    send = json.dumps(policies.document(policies.allow("Send", "sqs:SendMessage", arn)))
    iam.put_role_policy(RoleName="work", PolicyName="send", PolicyDocument=send)
    access.client("lambda").put_function_event_invoke_config(
        FunctionName="work", DestinationConfig={"OnFailure": {"Destination": arn}}
    )

    def tries_after(seconds: float) -> int:
        cloud.clock.advance(seconds)
        retries.retry_due(cloud)
        lambdas.wait_for_invocations(cloud)
        return lambdas.log_file(cloud, "work").read_text().count("errorType")

    lambdas.invoke_event(cloud, "work", b'{"run": 1}')
    assert [tries_after(seconds) for seconds in (0, 59, 1, 119)] == [1, 1, 2, 2]
    assert "Messages" not in sqs.receive_message(QueueUrl=url)
    assert [tries_after(seconds) for seconds in (1, 3600)] == [3, 3]
    (message,) = sqs.receive_message(QueueUrl=url)["Messages"]
    letter = json.loads(message["Body"])
    assert (letter["requestPayload"], letter["responsePayload"]["errorType"]) == ({"run": 1}, "KeyError")
    about = letter["requestContext"]
    assert (about["condition"], about["approximateInvokeCount"]) == ("RetriesExhausted", 3)
    printed = lambdas.log_file(cloud, "work").read_text().splitlines()
    assert {line for line in printed if not line.startswith("{")} == {about["requestId"]}


def test_a_function_needs_a_role_that_trusts_lambda_and_may_log(
    aws_server: CheckedAws, access: Access, role: str
) -> None:
    iam = access.client("iam")
    other = json.dumps(policies.trust("ec2.amazonaws.com"))
    arn = iam.create_role(RoleName="node", AssumeRolePolicyDocument=other)["Role"]["Arn"]
    with pytest.raises(ClientError, match="cannot be assumed by Lambda"):
        create(access, arn, ECHO)
    iam.delete_role_policy(RoleName="work", PolicyName="logs")
    create(access, role, ECHO)
    assert invoke(access)[1] == ""
    assert not lambdas.log_file(aws_server.cloud(access), "work").exists()


def test_a_failed_target_is_retried_and_then_a_dead_letter(
    desk: Any, cloud: CheckedAccount, scheduler_role: str
) -> None:
    sqs = desk.access.client("sqs")
    url, arn = new_queue(desk.access, "dead-letters")
    allow(desk, "sqs:SendMessage")
    target = {
        "Arn": TERMINATE,
        "RoleArn": scheduler_role,
        "Input": json.dumps({"InstanceIds": ["i-0123456789abcdef0"]}),
        "RetryPolicy": {"MaximumRetryAttempts": 2},
        "DeadLetterConfig": {"Arn": arn},
    }
    desk.access.client("scheduler").create_schedule(
        Name="s",
        ScheduleExpression="at(2026-11-20T12:05:00)",
        FlexibleTimeWindow={"Mode": "OFF"},
        Target=target,
        ActionAfterCompletion="DELETE",
    )
    assert [fire(cloud, seconds) for seconds in (300, 59, 1, 119)] == [1, 0, 1, 0]
    assert names(desk) == ["s"] and "Messages" not in sqs.receive_message(QueueUrl=url)
    assert [fire(cloud, seconds) for seconds in (1, 3600)] == [1, 0]
    assert names(desk) == []
    (message,) = sqs.receive_message(QueueUrl=url)["Messages"]
    letter = json.loads(message["Body"])
    assert letter["schedule"] == "default/s" and letter["error"].startswith("InvalidInstanceID.NotFound: ")


def allow(desk: Any, *actions: str, condition: dict[str, Any] | None = None) -> None:
    """Let the schedules' role do this, and nothing else."""
    document = json.dumps(policies.document(policies.allow("Own", list(actions), "*", condition)))
    name = "own" if condition else "more"
    desk.access.client("iam").put_role_policy(RoleName="schedules", PolicyName=name, PolicyDocument=document)


def test_a_schedule_has_the_rights_of_its_role_and_no_others(
    desk: Any, cloud: CheckedAccount, scheduler_role: str
) -> None:
    allow(desk, "ec2:TerminateInstances", condition={"StringEquals": {"aws:ResourceTag/project": "mayfly"}})
    own, other = (desk.launched(token=project, tags={"project": project}) for project in ("mayfly", "else"))
    for name, instance_id in (("own", own), ("other", other)):
        ids = json.dumps({"InstanceIds": [instance_id]})
        create_schedule(desk, scheduler_role, "at(2026-11-20T12:05:00)", Name=name, Input=ids)
    arn = f"arn:aws:lambda:us-east-1:{cloud.account}:function:work"
    create_schedule(desk, scheduler_role, "at(2026-11-20T12:05:00)", arn, Name="function")
    fire(cloud, 300)
    assert (desk.state(own), desk.state(other)) == ("terminated", "running")
    errors = {one.schedule: one.error for one in cloud.deliveries}
    role = f"arn:aws:sts::{cloud.account}:assumed-role/schedules/default"
    assert errors["own"] == ""
    assert f"User: {role}/other is not authorized to perform: ec2:TerminateInstances" in errors["other"]
    assert errors["function"] == (
        f"User: {role}/function is not authorized to perform: lambda:InvokeFunction on resource: {arn} "
        "because no identity-based policy allows the lambda:InvokeFunction action"
    )


@pytest.mark.parametrize(
    "source",
    [
        {"aws:SourceArn": "arn:aws:scheduler:us-east-1:{account}:schedule-group/other"},
        {"aws:SourceAccount": "1"},
    ],
)
def test_a_role_that_trusts_another_group_or_account_is_refused(
    desk: Any, cloud: CheckedAccount, source: dict[str, str]
) -> None:
    where = {name: value.format(account=cloud.account) for name, value in source.items()}
    document = json.dumps(policies.trust("scheduler.amazonaws.com", {"StringEquals": where}))
    role = desk.access.client("iam").create_role(RoleName="narrow", AssumeRolePolicyDocument=document)
    with pytest.raises(ClientError, match="must allow AWS EventBridge Scheduler to assume the role"):
        create_schedule(desk, role["Role"]["Arn"], "rate(2 minutes)")


@pytest.mark.parametrize("role", ["nobody", "node"])
def test_a_schedules_role_exists_and_trusts_the_scheduler(desk: Any, role: str) -> None:
    with pytest.raises(ClientError) as failed:
        create_schedule(desk, f"arn:aws:iam::000000000001:role/{role}", "rate(2 minutes)")
    assert failed.value.response["Error"]["Code"] == "ValidationException" and names(desk) == []
