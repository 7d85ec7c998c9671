"""Spot interruptions as EC2 makes them, on a clock of the test's own: states, metadata and events.

Each row of CONTRACT names the AWS documentation that it copies.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from tests.aws.clock import StoppedClock
from trainer.base.errors import UsageError
from trainer.rehearsal.account import EmbeddedAccount
from trainer.rehearsal.interruptions import AskedInterruption, Interruption, interrupt_due, read_interruption
from trainer.rehearsal.messages import event_about, events_of
from trainer.rehearsal.server import EmbeddedAws
from trainer.rehearsal.world import AwsError, Delays, Instance, World
from trainer.runs.keys import NodeKeys

NOW = datetime(2026, 11, 24, 12, 0, tzinfo=timezone.utc)
GUIDE = "EC2 user guide"
NOTICES = f"{GUIDE}, Spot Instance interruption notices"
REBALANCES = f"{GUIDE}, EC2 instance rebalance recommendations"


def later(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


@pytest.fixture
def world() -> World:
    return World(delays=Delays(pending_seconds=0, shutting_down_seconds=40))


def add(world: World, *, market: str = "spot") -> Instance:
    description = {"InstanceId": "i-1", "InstanceType": "g5.xlarge", "InstanceLifecycle": market}
    description["Placement"] = {"AvailabilityZone": "us-east-1a"}  # type: ignore[assignment]
    known: dict[str, Any] = {"reservation_id": "r-1", "user_data": b"", "shutdown_behavior": "terminate"}
    return world.add(description, now=NOW, **known)


def test_a_spot_instance_is_taken_two_minutes_after_notice(world: World) -> None:
    instance = add(world)
    world.interrupt("i-1", later(10))
    world.due_to_start(later(129))
    assert instance.is_noticed(later(10)) and instance.state(later(129)) == "running"
    world.due_to_start(later(130))
    assert [instance.state(later(at)) for at in (130, 169, 170)] == [
        "shutting-down",
        "shutting-down",
        "terminated",
    ]
    shown = world.describe(instance, later(170))
    assert shown["StateReason"]["Code"] == "Server.SpotInstanceTermination"


def test_an_interruption_may_come_without_notice(world: World) -> None:
    instance = add(world)
    world.interrupt("i-1", later(10), after=timedelta(0), notice=timedelta(0))
    assert instance.state(later(10)) == "shutting-down" and not instance.is_noticed(later(10))


def test_a_rehearsal_may_shorten_the_two_minutes(world: World) -> None:
    instance = add(world)
    half = timedelta(seconds=60)
    world.interrupt("i-1", later(10), after=half, notice=half)
    assert (instance.noticed_at, instance.taken_at) == (later(10), later(70))


def test_a_second_interruption_changes_nothing(world: World) -> None:
    instance = add(world)
    world.interrupt("i-1", later(10))
    world.interrupt("i-1", later(50))
    assert instance.taken_at == later(130)


def test_a_machine_that_ended_by_itself_keeps_its_reason(world: World) -> None:
    instance = add(world)
    world.interrupt("i-1", later(10))
    world.power_off("i-1", later(60))
    world.due_to_start(later(200))
    assert instance.reason[0] == "Client.InstanceInitiatedShutdown"


def test_only_spot_instances_are_interrupted(world: World) -> None:
    add(world, market="on-demand")
    for call in (world.interrupt, world.recommend):
        with pytest.raises(AwsError, match="not a spot instance"):
            call("i-1", NOW)


CONTRACT = [
    # (source, what happened, seconds later, path of the metadata, its text; None: 404)
    (NOTICES, "nothing", 0, "spot/instance-action", None),
    (REBALANCES, "nothing", 0, "events/recommendations/rebalance", None),
    (REBALANCES, "recommend", 5, "events/recommendations/rebalance", {"noticeTime": "2026-11-24T12:00:00Z"}),
    (REBALANCES, "recommend", 5, "spot/instance-action", None),
    (
        NOTICES,
        "interrupt",
        5,
        "spot/instance-action",
        {"action": "terminate", "time": "2026-11-24T12:02:00Z"},
    ),
    (f"{NOTICES} (kept for old clients)", "interrupt", 5, "spot/termination-time", "2026-11-24T12:02:00Z"),
    (f"{NOTICES}: best effort", "sudden", 0, "spot/instance-action", None),
    (NOTICES, "later", 179, "spot/instance-action", None),
    (NOTICES, "later", 180, "spot/instance-action", {"action": "terminate", "time": "2026-11-24T12:05:00Z"}),
]


@pytest.fixture
def machine(aws_server: EmbeddedAws, desk: Any) -> tuple[EmbeddedAccount, str]:
    """A spot instance of an account whose clock the test moves."""
    cloud = aws_server.cloud(desk.access)
    cloud.clock = StoppedClock(NOW)
    return cloud, desk.launched(market="spot")


def happen(cloud: EmbeddedAccount, instance_id: str, what: str) -> None:
    world, now, minutes = cloud.world, cloud.clock.now(), timedelta(minutes=5)
    with cloud.lock:
        if what == "recommend":
            world.recommend(instance_id, now)
        elif what == "interrupt":
            world.interrupt(instance_id, now)
        elif what == "sudden":
            world.interrupt(instance_id, now, after=minutes, notice=timedelta(0))
        elif what == "later":
            world.interrupt(instance_id, now, after=minutes)


@pytest.mark.parametrize(("source", "what", "seconds", "path", "text"), CONTRACT)
def test_metadata_tells_notices_as_documented(
    aws_server: EmbeddedAws,
    machine: tuple[EmbeddedAccount, str],
    source: str,
    what: str,
    seconds: float,
    path: str,
    text: Any,
) -> None:
    cloud, instance_id = machine
    happen(cloud, instance_id, what)
    cloud.clock.advance(seconds)
    get = asking(aws_server, cloud, instance_id)
    if text is None:
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get(path)
    else:
        answer = get(path)
        assert (json.loads(answer) if isinstance(text, dict) else answer) == text, source


def asking(aws_server: EmbeddedAws, cloud: EmbeddedAccount, instance_id: str) -> Callable[[str], str]:
    base = f"{aws_server.nodes.metadata_url(cloud, instance_id)}/latest"

    def answer(path: str, method: str, **headers: str) -> str:
        named = {f"X-aws-ec2-metadata-{name}": value for name, value in headers.items()}
        request = urllib.request.Request(f"{base}/{path}", method=method, headers=named)
        with urllib.request.urlopen(request, timeout=500) as got:
            return str(got.read().decode())

    token = answer("api/token", "PUT", **{"token-ttl-seconds": "60"})
    return lambda path: answer(f"meta-data/{path}", "GET", token=token)


EVENTS = [
    # (source, detail type, arn in `resources`, the rest of the detail)
    (
        REBALANCES,
        "EC2 Instance Rebalance Recommendation",
        "arn:aws:ec2:us-east-1:{account}:instance/{id}",
        {},
    ),
    (
        f"{NOTICES}: the ARN has the zone",
        "EC2 Spot Instance Interruption Warning",
        "arn:aws:ec2:us-east-1a:instance/{id}",
        {"instance-action": "terminate"},
    ),
    (
        f"{GUIDE}, Monitor your instances using EventBridge",
        "EC2 Instance State-change Notification",
        "arn:aws:ec2:us-east-1:{account}:instance/{id}",
        {"state": "running"},
    ),
]


def test_events_have_the_documented_fields(machine: tuple[EmbeddedAccount, str]) -> None:
    cloud, instance_id = machine
    happen(cloud, instance_id, "recommend")
    happen(cloud, instance_id, "interrupt")
    told = events_of(cloud.world.instances[instance_id], cloud.clock.now())
    assert list(told) == [kind for _, kind, _, _ in EVENTS]
    for source, kind, arn, detail in EVENTS:
        event = event_about(cloud, kind, instance_id, told[kind])
        assert event["detail"] == {"instance-id": instance_id, **detail}, source
        assert event["resources"] == [arn.format(account=cloud.account, id=instance_id)], source
        assert (event["detail-type"], event["source"], event["version"]) == (kind, "aws.ec2", "0")
        assert (event["account"], event["region"]) == (cloud.account, "us-east-1")
        assert event["time"] == "2026-11-24T12:00:00Z"


def test_nothing_is_told_of_a_machine_that_is_gone(machine: tuple[EmbeddedAccount, str]) -> None:
    cloud, instance_id = machine
    happen(cloud, instance_id, "interrupt")
    cloud.clock.advance(130)
    with cloud.lock:
        cloud.world.due_to_start(cloud.clock.now())
        told = events_of(cloud.world.instances[instance_id], cloud.clock.now())
    assert told == {"EC2 Instance State-change Notification": {"state": "terminated"}}


# --- a user's own
# ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "share", "notice"), [("40%", 0.4, 20), ("1%", 0.01, 20), ("99%,no-notice", 0.99, 0)]
)
def test_an_interruption_is_a_share_with_or_without_notice(text: str, share: float, notice: float) -> None:
    assert read_interruption(text) == Interruption(share=share, notice_seconds=notice)


@pytest.mark.parametrize(
    "text", ["", "40", "0%", "100%", "-4%", "4.5%", "forty", "40%,no", "40% ", "٤٠%", "no-notice"]
)
def test_a_senseless_interruption_is_one_error(text: str) -> None:
    with pytest.raises(UsageError, match="--interrupt is '.*' .*1% to 99%.*Write it as --interrupt 40%"):
        read_interruption(text)


def reported(done: int, *steps: int) -> bytes:
    """Return a progress object: models of 10 steps, `done` of them done, others at these steps."""
    pieces = {f"d{number}": {"state": "done"} for number in range(done)}
    at_work = {"state": "training", "epochs": 1, "steps": 10}
    pieces |= {f"t{number}": {**at_work, "epoch": 1, "step": step} for number, step in enumerate(steps)}
    return json.dumps({"models_total": 4, "progress": pieces}).encode()


@pytest.mark.parametrize(("notice", "state"), [(20, "running"), (0, "terminated")])
def test_a_job_is_interrupted_when_its_share_is_done(
    aws_server: EmbeddedAws, desk: Any, notice: float, state: str
) -> None:
    cloud, s3 = aws_server.cloud(desk.access), desk.access.client("s3")
    cloud.clock = StoppedClock(NOW)
    tags = {"run_id": "r1", "role_id": "AROA1"}
    first = desk.launched(token="1", market="spot", tags={**tags, "attempt": "1"})
    second = desk.launched(token="2", market="spot", tags={**tags, "attempt": "2"})
    bucket = f"progress-{cloud.account}-{state}"
    s3.create_bucket(Bucket=bucket)
    key = NodeKeys(role_id="AROA1", instance_id=first, run_id="r1", attempt=1).progress
    cloud.interruptions["r1"] = AskedInterruption(wanted=Interruption(share=0.4, notice_seconds=notice))

    def look() -> None:
        interrupt_due(cloud.world, cloud.interruptions, cloud.buckets.values(), NOW)

    for body in (b"not ours", reported(0, 9), reported(1, 5)):  # 22 %, 37 %
        look()
        s3.put_object(Bucket=bucket, Key=key, Body=body)
        look()
        assert cloud.world.instances[first].taken_at is None
    s3.put_object(Bucket=bucket, Key=key, Body=reported(1, 7))
    look()
    assert cloud.world.instances[first].taken_at == later(notice)
    assert cloud.world.instances[first].is_noticed(NOW) is bool(notice)
    assert (desk.state(first), desk.state(second)) == (state, "running")
    assert cloud.interruptions == {}


def test_a_later_attempt_is_interrupted_at_once(aws_server: EmbeddedAws, desk: Any) -> None:
    cloud = aws_server.cloud(desk.access)
    cloud.clock = StoppedClock(NOW)
    later_one = AskedInterruption(wanted=Interruption(share=0, notice_seconds=120), attempt=2)
    cloud.interruptions["r1"] = later_one
    desk.launched(token="1", market="spot", tags={"run_id": "r1", "attempt": "1"})
    interrupt_due(cloud.world, cloud.interruptions, cloud.buckets.values(), NOW)
    assert cloud.interruptions == {"r1": later_one}
    second = desk.launched(token="2", market="spot", tags={"run_id": "r1", "attempt": "2"})
    interrupt_due(cloud.world, cloud.interruptions, cloud.buckets.values(), NOW)
    assert cloud.world.instances[second].taken_at == later(120) and cloud.interruptions == {}
