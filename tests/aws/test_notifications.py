"""The stack's functions and schedules at work on the embedded AWS, under their roles: what goes wrong is told
at a webhook.

One account goes through a day on a clock of the test's own: instances that nothing else ends, a sweeper that
fails, one that is gone. The tests look at what was told, and compare what the policies allow with what was
asked for.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.aws import alarms, retries
from tests.aws.clock import StoppedClock
from tests.iam import assert_allowed_is_needed
from tests.webhook import webhook
from trainer.aws.access import Access
from trainer.aws.stack import read_stack
from trainer.aws.stack_outputs import StackOutputs, webhook_parameter
from trainer.base.instants import iso, utc_now
from trainer.control.cloud import schedule_request
from trainer.rehearsal import lambdas, scheduling
from trainer.rehearsal.account import EmbeddedAccount, Function
from trainer.rehearsal.server import EmbeddedAws

pytestmark = pytest.mark.nightly  # of a day with everything that may go wrong
SWEEPER, CONTROL = "mayfly-dev-sweeper", "mayfly-dev-control"
OLD, RUN = "20261119-120000-old-aaaa", "20261120-120000-x-k3v9"


@dataclass(kw_only=True)
class Day:
    """The account, and what was seen in it."""

    access: Access
    cloud: EmbeddedAccount
    outputs: StackOutputs
    posted: list[dict[str, str]]  # at the webhook
    secret: str
    ended: dict[str, str] = field(default_factory=dict)  # kind of instance -> its state in the end
    letters: list[dict[str, Any]] = field(default_factory=list)

    def passes(self, minutes: float) -> None:
        """Move the clock on, and let everything that is due happen to its end."""
        self.cloud.clock.advance(minutes * 60)
        scheduling.fire_due(self.cloud)
        scheduling.wait_for_deliveries(self.cloud)
        retries.retry_due(self.cloud)
        lambdas.wait_for_invocations(self.cloud)
        alarms.evaluate_due(self.cloud)
        lambdas.wait_for_invocations(self.cloud)

    def retries(self) -> None:
        """Let a function that fails have its two more tries."""
        lambdas.wait_for_invocations(self.cloud)
        for minutes in (1, 2):
            self.cloud.clock.advance(minutes * 60)
            retries.retry_due(self.cloud)
            lambdas.wait_for_invocations(self.cloud)

    def launch(self, deadline: timedelta, *, protected: bool = False, **tags: str) -> str:
        values = {"project": "mayfly", "stack": "dev", "run_id": RUN, "role_id": "AROA1", **tags}
        values["deadline"] = iso(self.cloud.clock.now().replace(microsecond=0) + deadline)
        pairs = [{"Key": key, "Value": value} for key, value in values.items()]
        tagged = [{"ResourceType": "instance", "Tags": pairs}]
        ec2 = self.access.client("ec2")
        image = ec2.describe_images(Owners=["amazon"])["Images"][0]["ImageId"]
        one = {"InstanceType": "g5.xlarge", "MinCount": 1, "MaxCount": 1}
        one |= {"DisableApiTermination": protected}
        made = ec2.run_instances(ImageId=image, TagSpecifications=tagged, **one)
        return str(made["Instances"][0]["InstanceId"])

    def schedule(self, name: str, at: datetime, instance_id: str) -> None:
        request = schedule_request(
            name=name,
            group=self.outputs.schedule_group,
            at=at,
            target_arn="arn:aws:scheduler:::aws-sdk:ec2:terminateInstances",
            role_arn=self.outputs.scheduler_role_arn,
            target_input={"InstanceIds": [instance_id]},
        )
        self.access.client("scheduler").create_schedule(**request)

    def state(self, instance_id: str) -> str:
        found = self.access.client("ec2").describe_instances(InstanceIds=[instance_id])
        return str(found["Reservations"][0]["Instances"][0]["State"]["Name"])

    def take_letters(self) -> None:
        sqs = self.access.client("sqs")
        url = sqs.get_queue_url(QueueName="mayfly-dev-dead-letters")["QueueUrl"]
        while messages := sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages"):
            for message in messages:
                self.letters.append(json.loads(message["Body"]))
                sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])


@pytest.fixture(scope="module")
def day(aws_server: EmbeddedAws) -> Iterator[Day]:
    posted: list[dict[str, str]] = []
    secret = "T000-B000-XXXX"

    with webhook(lambda path: (200 if path == f"/{secret}" else 404, ""), posted) as url:
        access = aws_server.account()
        cloud = aws_server.cloud(access)
        cloud.clock = StoppedClock(utc_now())
        aws_server.apply_program(access)
        outputs = read_stack(access, stack="dev")
        day = Day(access=access, cloud=cloud, outputs=outputs, posted=posted, secret=secret)
        working = cloud.functions[CONTROL]  # broken all day: its zip lacks a module
        cloud.functions[CONTROL] = replace(working, handler="trainer.control.lost.handler")
        address = {"Name": webhook_parameter("mayfly", "dev"), "Value": f"{url}/{secret}"}
        access.client("ssm").put_parameter(**address, Type="SecureString")
        _morning(day)
        _noon(day)
        _evening(day, working)
        yield day


def _morning(day: Day) -> None:
    """Instances that nothing else ends: late and protected, silent, and one for its own schedule; and a schedule that
    nothing needs.
    """
    late, silent = day.launch(timedelta(minutes=1), protected=True), day.launch(timedelta(hours=9))
    beating, killed = day.launch(timedelta(hours=9)), day.launch(timedelta(hours=9), stack="other")
    foreign = day.launch(timedelta(hours=-1), stack="other")
    with day.cloud.lock:
        day.cloud.world.tag([killed], [{"Key": "stack", "Value": "dev"}])
    now = day.cloud.clock.now()
    day.schedule(f"mayfly-{OLD}-kill-1", now + timedelta(days=9), "i-0123456789abcdef0")
    day.schedule(f"mayfly-{RUN}-kill-1", now + timedelta(minutes=30), killed)
    for instance_id in (beating, killed):
        until = iso((now + timedelta(hours=9)).replace(microsecond=0))
        body = json.dumps({"at": iso(now.replace(microsecond=0)), "lease_until": until})
        key = f"live/AROA1:{instance_id}/{RUN}/1/0.json"
        day.access.client("s3").put_object(Bucket=day.outputs.bucket, Key=key, Body=body.encode())
    day.passes(31)
    named = {"late": late, "silent": silent, "killed": killed, "foreign": foreign}
    day.ended = {name: day.state(instance_id) for name, instance_id in named.items()}


def _noon(day: Day) -> None:
    """The sweeper fails on an event three times; then it works again, after it was silent for too long."""
    for _ in range(3):
        day.cloud.world.fail_next("DescribeInstances", "UnauthorizedOperation", status=403)
    lambdas.invoke_event(day.cloud, SWEEPER, json.dumps({"run_id": RUN}).encode())
    day.retries()
    alarms.evaluate_due(day.cloud)
    lambdas.wait_for_invocations(day.cloud)
    day.take_letters()


def _evening(day: Day, control: Function) -> None:
    """The sweeper is gone: its schedule can't call it, and no sweep is counted any more. Then both functions
    work again.
    """
    with day.cloud.lock:
        gone = day.cloud.functions.pop(SWEEPER)
    for minutes in (10, 1, 1, 14):
        day.passes(minutes)
    day.take_letters()
    with day.cloud.lock:
        day.cloud.functions[SWEEPER] = gone
        day.cloud.functions[CONTROL] = control
    day.passes(5)
    told = len(day.posted)
    nowhere = {"Name": webhook_parameter("mayfly", "dev"), "Value": f"http://127.0.0.1:1/{day.secret}"}
    day.access.client("ssm").put_parameter(**nowhere, Overwrite=True)
    day.access.client("sns").publish(TopicArn=day.outputs.topic_arn, Message="lost")
    day.retries()
    day.take_letters()
    assert len(day.posted) == told


def test_late_silent_and_scheduled_instances_of_the_stack_end(day: Day) -> None:
    assert {day.ended[name] for name in ("late", "silent", "killed")} <= {"shutting-down", "terminated"}
    assert day.ended["foreign"] == "running"
    names = [one["Name"] for one in day.access.client("scheduler").list_schedules()["Schedules"]]
    assert f"mayfly-{OLD}-kill-1" not in names


def test_the_webhook_hears_of_a_broken_sweeper_and_its_return(day: Day) -> None:
    heads = [message["text"].splitlines()[0] for message in day.posted]
    broken = heads.index("ALARM: mayfly-dev-sweeper-silent")
    assert "OK: mayfly-dev-sweeper-silent" in heads[broken:]
    assert "Nothing ends what is past its deadline." in day.posted[broken]["text"]
    assert "ALARM: mayfly-dev-dead-letters" in heads and "ALARM: mayfly-dev-instance-overdue" in heads


def test_the_webhook_hears_of_broken_control_and_its_return(day: Day) -> None:
    heads = [message["text"].splitlines()[0] for message in day.posted]
    broken = heads.index("ALARM: mayfly-dev-control-silent")
    assert "OK: mayfly-dev-control-silent" in heads[broken:]
    assert "No scheduled run starts, and none is settled." in day.posted[broken]["text"]


def test_exhausted_retries_end_in_the_dead_letter_queue(day: Day) -> None:
    whole = [one for one in day.letters if "requestContext" in one]
    of_control = f"{CONTROL}:$LATEST"
    by_function = [one for one in whole if not one["requestContext"]["functionArn"].endswith(of_control)]
    errors = {one["responsePayload"]["errorType"] for one in whole if one not in by_function}
    assert errors == {"ModuleNotFoundError"}  # control's
    assert [one["requestContext"]["condition"] for one in by_function] == ["RetriesExhausted"] * 2
    assert by_function[0]["requestPayload"] == {"run_id": RUN}
    assert by_function[1]["requestPayload"]["Records"][0]["Sns"]["Message"] == "lost"
    by_schedule = [one for one in day.letters if "schedule" in one]
    assert {one["schedule"] for one in by_schedule} == {"mayfly-dev/standing-sweep"}
    assert by_schedule[0]["error"].startswith("ResourceNotFoundException: ")


def test_the_webhooks_address_is_in_no_log_and_no_setting(day: Day) -> None:
    logs = "".join(path.read_text() for path in (day.cloud.root / "lambda" / day.cloud.account).glob("*.log"))
    functions = day.access.client("lambda").list_functions()["Functions"]
    assert day.posted and day.secret not in logs + json.dumps([functions, day.letters], default=str)


@pytest.mark.parametrize("name", ["sweeper", "notifier", "scheduler"])
def test_a_role_is_allowed_what_its_calls_need_and_no_more(day: Day, name: str) -> None:
    role = f"mayfly-dev-us-east-1-{name}"
    policy = day.access.client("iam").get_role_policy(RoleName=role, PolicyName=name)["PolicyDocument"]
    decided = [(asked, by) for who, asked, by in day.cloud.decisions if who.role == role]
    assert_allowed_is_needed(decided, policy, {})
