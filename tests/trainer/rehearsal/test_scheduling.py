"""Schedules that fire on a clock of the test's own, and what AWS refuses."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.aws.clock import StoppedClock
from tests.aws.retries import retry_due
from trainer.rehearsal import scheduling
from trainer.rehearsal.account import EmbeddedAccount
from trainer.rehearsal.server import EmbeddedAws

NOON = datetime(2026, 11, 20, 12, 0, tzinfo=timezone.utc)
AT = "at(2026-11-20T12:05:00)"
TERMINATE = "arn:aws:scheduler:::aws-sdk:ec2:terminateInstances"


@pytest.fixture
def cloud(aws_server: EmbeddedAws, desk: Any) -> EmbeddedAccount:
    """The desk's cloud, its clock stopped at noon; a test fires what is due itself."""
    cloud = aws_server.cloud(desk.access)
    cloud.clock = StoppedClock(NOON)
    return cloud


def create(desk: Any, role: str, expression: str, arn: str = TERMINATE, **options: Any) -> None:
    target = {"Arn": arn, "RoleArn": role, "Input": options.pop("Input", "{}")}
    given = {"Name": "s", "ScheduleExpression": expression, "Target": target, **options}
    desk.access.client("scheduler").create_schedule(FlexibleTimeWindow={"Mode": "OFF"}, **given)


def fire(cloud: EmbeddedAccount, seconds: float) -> int:
    """Move the clock on, let everything that is due happen to its end, and return how much that was."""
    before = len(cloud.deliveries)
    cloud.clock.advance(seconds)
    scheduling.fire_due(cloud)
    retry_due(cloud)
    scheduling.wait_for_deliveries(cloud)
    return len(cloud.deliveries) - before


def names(desk: Any) -> list[str]:
    return [one["Name"] for one in desk.access.client("scheduler").list_schedules()["Schedules"]]


def test_a_one_time_schedule_terminates_an_instance_and_vanishes(
    desk: Any, cloud: EmbeddedAccount, scheduler_role: str
) -> None:
    instance_id = desk.launched()
    ids = json.dumps({"InstanceIds": [instance_id]})
    create(desk, scheduler_role, AT, Input=ids, ActionAfterCompletion="DELETE")
    assert fire(cloud, 299) == 0
    assert desk.state(instance_id) == "running"
    assert fire(cloud, 1) == 1
    assert desk.state(instance_id) in ("shutting-down", "terminated")
    assert names(desk) == []
    assert fire(cloud, 3600) == 0


@pytest.mark.parametrize(
    ("change", "nights", "lates"),
    [  # in New York
        ((3, 14), ["03-07 07:30", "03-21 06:30"], ["03-07 06:30", "03-14 06:30", "03-21 05:30"]),
        (
            (11, 7),
            ["10-31 06:30", "11-07 07:30", "11-14 07:30"],
            ["10-31 05:30", "11-07 05:30", "11-14 06:30"],
        ),
    ],
    ids=["02:30 does not exist", "01:30 comes twice"],
)
def test_a_weekly_schedule_goes_through_a_clock_change(
    desk: Any,
    cloud: EmbeddedAccount,
    scheduler_role: str,
    change: tuple[int, int],
    nights: list[str],
    lates: list[str],
) -> None:
    cloud.clock = StoppedClock(datetime(2027, *change, tzinfo=timezone.utc) - timedelta(days=7))
    for name, hour in (("night", 2), ("late", 1)):
        zone = {"ScheduleExpressionTimezone": "America/New_York"}
        create(desk, scheduler_role, f"cron(30 {hour} ? * SUN *)", Name=name, **zone)
    fired = []
    for half_hours in range(15 * 48):
        fired += cloud.world.fire_due(cloud.clock.now() + timedelta(minutes=30 * half_hours))
    told = sorted((firing.name, f"{firing.at:%m-%d %H:%M}") for firing in fired)
    assert told == sorted([*(("night", at) for at in nights), *(("late", at) for at in lates)])


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        ({"InstanceIds": ["i-0123456789abcdef0"]}, "InvalidInstanceID.NotFound"),
        ({"instanceIds": ["i-1"]}, "instanceIds"),  # misspelled
    ],
)
def test_a_target_that_fails_is_on_record(
    desk: Any, cloud: EmbeddedAccount, scheduler_role: str, sent: dict[str, Any], error: str
) -> None:
    create(desk, scheduler_role, AT, Input=json.dumps(sent))
    fire(cloud, 300)
    assert error in cloud.deliveries[-1].error


def test_a_delivery_recorded_late_is_waited_for_whoever_fired_it(
    desk: Any, cloud: EmbeddedAccount, scheduler_role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server fired what the test was about to fire, and the test looked before the delivery was on
    record.
    """
    fired, answer = threading.Event(), threading.Event()

    def blocked(cloud: EmbeddedAccount, firing: Any) -> None:
        fired.set()
        answer.wait()
        raise ValueError("a late answer")

    monkeypatch.setattr(scheduling, "_call_target", blocked)
    create(desk, scheduler_role, AT)
    cloud.clock.advance(300)
    cloud.fire_schedules = True  # from here on the server's own thread takes it
    fired.wait()
    assert cloud.deliveries == []  # what the test saw
    threading.Timer(0.1, answer.set).start()  # the later, the surer an early look would fail
    assert fire(cloud, 0) == 1
    assert cloud.deliveries[-1].error == "a late answer"


def test_a_deleted_or_disabled_schedule_does_not_fire(
    desk: Any, cloud: EmbeddedAccount, scheduler_role: str
) -> None:
    create(desk, scheduler_role, "rate(2 minutes)", Name="deleted")
    create(desk, scheduler_role, "rate(2 minutes)", Name="disabled", State="DISABLED")
    desk.access.client("scheduler").delete_schedule(Name="deleted")
    assert fire(cloud, 600) == 0


def test_an_updated_schedule_fires_at_its_new_time(
    desk: Any, cloud: EmbeddedAccount, scheduler_role: str
) -> None:
    create(desk, scheduler_role, AT)
    desk.access.client("scheduler").update_schedule(
        Name="s",
        ScheduleExpression="at(2026-11-20T12:30:00)",
        FlexibleTimeWindow={"Mode": "OFF"},
        Target={"Arn": TERMINATE, "RoleArn": scheduler_role, "Input": "{}"},
    )
    assert fire(cloud, 600) == 0
    assert fire(cloud, 1200) == 1


def test_the_session_server_fires_nothing_by_itself(
    aws_server: EmbeddedAws,
    cloud: EmbeddedAccount,
    monkeypatch: pytest.MonkeyPatch,
    wait_until: Callable[..., None],
) -> None:
    seen: list[EmbeddedAccount] = []
    monkeypatch.setattr(scheduling, "fire_due", seen.append)
    other = aws_server.cloud(aws_server.account())
    other.fire_schedules = True
    wait_until(lambda: len(seen) >= 2)  # it went through all accounts once, at least
    assert cloud not in seen and other in seen
    other.fire_schedules = False


@pytest.mark.parametrize(
    ("expression", "options"),
    [
        ("every day", {}),
        ("at(2026-11-20T12:05:00Z)", {}),
        ("rate(2 minutes)", {"arn": "arn:aws:scheduler:::aws-sdk:ec2:describeInstances"}),
        ("rate(2 minutes)", {"arn": "arn:aws:sns:us-east-1:000000000001:topic"}),
        ("rate(2 minutes)", {"Name": "a name with blanks"}),
        ("rate(2 minutes)", {"Name": "x" * 65}),
        ("rate(2 minutes)", {"ScheduleExpressionTimezone": "Mars/Olympus"}),
    ],
)
def test_an_invalid_schedule_is_a_validation_error(
    desk: Any, scheduler_role: str, expression: str, options: dict[str, Any]
) -> None:
    with pytest.raises(ClientError) as failed:
        create(desk, scheduler_role, expression, **options)
    assert failed.value.response["Error"]["Code"] == "ValidationException"
    assert names(desk) == []


@pytest.mark.parametrize("limit", ["StartDate", "EndDate"])
def test_a_schedule_with_a_limit_of_its_own_is_refused(desk: Any, scheduler_role: str, limit: str) -> None:
    with pytest.raises(ClientError, match="does not carry out CreateSchedule"):
        create(desk, scheduler_role, "rate(5 minutes)", **{limit: NOON})
    assert names(desk) == []


def test_a_schedule_needs_its_group_and_a_name_of_its_own(desk: Any, scheduler_role: str) -> None:
    with pytest.raises(ClientError) as failed:
        create(desk, scheduler_role, "rate(2 minutes)", GroupName="nowhere")
    assert failed.value.response["Error"]["Code"] == "ResourceNotFoundException"
    create(desk, scheduler_role, "rate(2 minutes)")
    with pytest.raises(ClientError) as failed:
        create(desk, scheduler_role, "rate(2 minutes)")
    assert failed.value.response["Error"]["Code"] == "ConflictException"


@pytest.mark.parametrize(
    ("service", "call"),
    [("s3", "list_buckets"), ("ec2", "describe_instances"), ("ec2", "describe_vpcs"), ("iam", "list_users")],
)
def test_every_answer_has_the_accounts_date(
    desk: Any, cloud: EmbeddedAccount, service: str, call: str
) -> None:
    """A rule's answer and moto's own: the desk reads AWS's clock from whichever comes first."""
    cloud.clock.advance(7 * 24 * 3600)
    answer = getattr(desk.access.client(service), call)()
    assert answer["ResponseMetadata"]["HTTPHeaders"]["date"] == "Fri, 27 Nov 2026 12:00:00 GMT"
