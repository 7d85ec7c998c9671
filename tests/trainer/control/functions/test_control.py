"""The control function: what it settles, what it starts, and which events it drops."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace

import pytest

from tests.trainer.control.conftest import MemoryCloud
from tests.trainer.launch.test_start import OUTPUTS
from tests.trainer.retrains.test_decision import PUBLISHED, SUNDAY, WEEKLY
from trainer.aws.access import Access
from trainer.aws.place import REHEARSAL
from trainer.base.errors import ConnectionFailed, PermissionDenied
from trainer.base.instants import iso
from trainer.control.functions import control
from trainer.control.functions.control import answer
from trainer.control.retrain_calls import overdue
from trainer.control.retrain_home import RetrainHome
from trainer.control.settle import settle_all
from trainer.retrains.entries import (
    MOST_CALLS_AGAIN,
    begin_entry,
    entry_key,
    read_entry,
)
from trainer.retrains.published import published_key, write_published
from trainer.runs.index import TELLING, begin_run
from trainer.runs.record_json import to_json
from trainer.runs.store import read_record, receipt_key, record_key

ENDED = {"source": "aws.ec2", "detail-type": "EC2 Instance State-change Notification"}


def home_of(cloud, publish, retrains=(WEEKLY,)):
    """Return control's home in a cloud, in a stack with one retrain, or with these."""
    outputs = replace(OUTPUTS, retrains=[schedule.to_dict() for schedule in retrains])
    return RetrainHome(access=Access(place=REHEARSAL), outputs=outputs, cloud=cloud, publish=publish)


def called(
    cloud, event=None, looks=50, messages=None, publish=None, retrains=(WEEKLY,), request_id="request-1"
):
    """Call control in a cloud; time is left for so many looks."""
    left = iter(range(looks))
    home = home_of(cloud, publish or (messages if messages is not None else []).append, retrains)
    return answer(
        event or {},
        home,
        poll_seconds=5.0,
        time_is_left=lambda: next(left, None) is not None,
        request_id=request_id,
        sleep=cloud.sleep,
    )


def test_control_starts_and_settles_the_run_that_it_drives(make_cloud):
    cloud, record = make_cloud(driver="control")
    assert called(cloud)["settled"] == {record.run_id: "running"}
    assert len(cloud.alive()) == 1 and len(cloud.schedules) == 2
    cloud.clock += timedelta(minutes=5)
    cloud.advance()
    cloud.clock += timedelta(minutes=1)
    assert called(cloud)["settled"] == {record.run_id: "done"}
    assert cloud.objects.get(key=receipt_key(record.run_id)) is not None
    assert called(cloud)["settled"] == {}


class Calls:
    """A stand-in for boto3's clients of the handler: what CloudWatch was given."""

    def __init__(self) -> None:
        self.metrics: list[str] = []

    def client(self, name):
        return self

    def get_parameter(self, **asked):
        return {"Parameter": {"LastModifiedDate": SUNDAY}}

    def put_metric_data(self, *, Namespace, MetricData):  # noqa: N803
        self.metrics += [item["MetricName"] for item in MetricData]


def in_the_function(monkeypatch, access, home):
    """Have the handler find this account and this stack."""
    own = SimpleNamespace(project="mayfly", stack="dev")
    replaced = {"own_access": access, "read_stack": home.outputs, "AwsCloud": home.cloud, "publisher": print}
    for name, value in {**replaced, "function_environment": own}.items():
        monkeypatch.setattr(control, name, lambda *given, value=value, **named: value)


def context_of(*, milliseconds):
    """Return what Lambda says of a call that has so long to go."""
    return SimpleNamespace(get_remaining_time_in_millis=lambda: milliseconds, aws_request_id="r")


@pytest.mark.parametrize("failure", [ConnectionFailed("S3 is away"), KeyError("a fault of ours")])
def test_a_run_that_stays_unobservable_silences_no_metric(make_cloud, monkeypatch, failure):
    cloud, record = make_cloud(driver="control")
    other = replace(record, run_id=f"{record.run_id[:-4]}zzzz")
    begin_run(cloud.objects, other)
    access, home = Calls(), home_of(cloud, print, retrains=())
    access.place = REHEARSAL

    def instances(*, run_id):
        if run_id == other.run_id:
            raise failure
        return MemoryCloud.instances(cloud, run_id=run_id)

    cloud.instances = instances
    in_the_function(monkeypatch, access, home)
    monkeypatch.setattr(control.time, "sleep", cloud.sleep)
    with pytest.raises(RuntimeError, match=other.run_id):
        control.handler({}, context_of(milliseconds=300_000))
    assert access.metrics == ["SettlesDone", "RetrainsOverdue"]
    assert read_record(cloud.objects, record.run_id)[0].state == "running"


@pytest.mark.parametrize(("milliseconds", "is_left"), [(300_000, True), (30_000, False)])
def test_a_call_ends_before_lambda_ends_it(make_cloud, monkeypatch, milliseconds, is_left):
    told = []

    def answered(event, home, *, time_is_left, **named):
        told.append(time_is_left())
        return {"problems": {}}

    cloud, _ = make_cloud(driver="control")
    access = Calls()
    access.place = REHEARSAL
    in_the_function(monkeypatch, access, home_of(cloud, print, retrains=()))
    monkeypatch.setattr(control, "answer", answered)
    control.handler({}, context_of(milliseconds=milliseconds))
    assert told == [is_left]


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (KeyError("a fault of ours"), "KeyError: 'a fault of ours'"),
        (ConnectionFailed("S3 is away"), str(ConnectionFailed("S3 is away"))),
    ],
)
def test_a_fault_about_one_retrain_holds_up_nothing_else(make_cloud, monkeypatch, failure, told):
    cloud, record = make_cloud(driver="control")
    begin_entry(cloud.objects, "weekly", SUNDAY, SUNDAY)

    def failing(home, entry):
        raise failure

    monkeypatch.setattr(control, "advance", failing)
    report = called(cloud)
    assert report["settled"] == {record.run_id: "running"}
    assert report["problems"] == {f"weekly {iso(SUNDAY)}": told}


def test_a_step_that_fails_for_one_run_is_told(make_cloud, monkeypatch):
    cloud, record = make_cloud(driver="control")
    called(cloud)
    cloud.node_beats = cloud.node_works = False
    cloud.clock = record.deadline + timedelta(minutes=1)

    def refused(*, instance_ids):
        raise PermissionDenied("not allowed to terminate it", why="UnauthorizedOperation")

    monkeypatch.setattr(cloud, "terminate", refused)
    told = called(cloud)
    assert told["settled"] == {record.run_id: "expired"}
    assert "not allowed to terminate it" in told["problems"][record.run_id]
    monkeypatch.undo()
    assert called(cloud)["problems"] == {}


def test_a_start_that_waits_for_aws_goes_on_while_time_is_left(make_cloud):
    cloud, record = make_cloud(driver="control")
    cloud.errors = ["RequestLimitExceeded"] * 2
    assert called(cloud, looks=0)["settled"] == {record.run_id: "starting"}
    assert called(cloud)["settled"] == {record.run_id: "running"}
    assert len(cloud.alive()) == 1


def test_a_scheduled_run_without_capacity_goes_on_next_call(make_cloud):
    cloud, record = make_cloud(driver="control", queue_seconds=3600.0)
    cloud.full = {"us-east-1a", "us-east-1b"}
    assert called(cloud, looks=0)["settled"] == {record.run_id: "starting"}
    waiting = read_record(cloud.objects, record.run_id)[0]
    assert waiting.attempt.waits and waiting.attempt.queue.walks == 2
    assert settle_all(cloud).settled[0].look.actions[0].why.startswith("waiting for capacity since 12:00:")
    for _ in range(6):  # half an hour of calls every five minutes
        cloud.clock += timedelta(minutes=5)
        assert called(cloud, looks=0)["settled"] == {record.run_id: "starting"}
    cloud.full.clear()
    cloud.clock += timedelta(minutes=5)
    assert called(cloud, looks=0)["settled"] == {record.run_id: "running"}
    launch = read_record(cloud.objects, record.run_id)[0].last_launch
    assert launch.deadline - cloud.clock > timedelta(minutes=59), "waiting takes nothing from max_duration"


def test_control_looks_again_when_the_next_try_is_due(make_cloud):
    cloud, record = make_cloud(driver="control", queue_seconds=3600.0)
    cloud.full = {"us-east-1a", "us-east-1b"}
    assert called(cloud, looks=40)["settled"] == {record.run_id: "starting"}
    waited = cloud.clock - record.created_at
    assert timedelta(minutes=3) < waited < timedelta(minutes=4), (
        "as long as time is left, five seconds a look"
    )
    assert read_record(cloud.objects, record.run_id)[0].attempt.queue.walks > 3


def test_no_command_starts_or_gives_up_a_run_that_control_drives(make_cloud):
    cloud, record = make_cloud(driver="control")
    cloud.clock += timedelta(minutes=30)
    settled = settle_all(cloud)
    assert [item.look.record.state for item in settled.settled] == ["starting"] and not cloud.machines
    assert called(cloud)["settled"] == {record.run_id: "running"}


def test_control_starts_no_run_of_a_desk(make_cloud):
    cloud, record = make_cloud()
    assert called(cloud)["settled"] == {record.run_id: "starting"}
    cloud.clock += timedelta(minutes=3)
    messages = []
    assert called(cloud, messages=messages)["settled"] == {record.run_id: "interrupted"}
    assert [message.subject for message in messages] == [f"mayfly run {record.run_id}: interrupted"]
    assert called(cloud, messages=messages)["settled"] == {} and len(messages) == 1
    assert not cloud.machines


def test_a_message_that_fails_is_a_problem_of_the_call_alone(make_cloud):
    def refuse(message):
        raise ConnectionFailed(f"cannot publish {message.subject}")

    cloud, record = make_cloud()
    called(cloud)
    cloud.clock += timedelta(minutes=3)
    told = called(cloud, publish=refuse)
    assert (
        told["settled"] == {record.run_id: "interrupted"}
        and "cannot publish" in told["problems"][record.run_id]
    )
    assert read_record(cloud.objects, record.run_id)[0].state == "closed"
    cloud.clock += 2 * TELLING
    messages = []
    assert called(cloud, messages=messages)["problems"] == {}
    assert [message.subject for message in messages] == [f"mayfly run {record.run_id}: interrupted"]

    # A scheduled time ends all the same, and is told by the next call that SNS listens to.
    cloud.clock = SUNDAY
    at = {"retrain": "weekly", "scheduled_time": iso(SUNDAY)}
    told = called(cloud, at, publish=refuse)
    name = f"weekly {iso(SUNDAY)}"
    assert told["retrains"] == {name: "refused"} and "cannot publish" in told["problems"][name]
    cloud.clock += 2 * TELLING
    messages = []
    assert called(cloud, messages=messages)["problems"] == {}
    assert [message.subject for message in messages] == ["mayfly weekly: refused"]


def test_a_publication_of_another_format_fails_its_time_alone(make_cloud):
    cloud, record = make_cloud(driver="control")
    cloud.objects.write(published_key("weekly"), to_json(replace(PUBLISHED, format=99)))
    cloud.clock = SUNDAY + timedelta(minutes=1)
    messages = []
    told = called(cloud, {"retrain": "weekly", "scheduled_time": iso(SUNDAY)}, messages=messages)
    assert told["retrains"] == {f"weekly {iso(SUNDAY)}": "failed"} and told["problems"] == {}
    assert record.run_id in told["settled"]
    assert (
        "cannot read what was published for retrain weekly (" in messages[0].text and "99" in messages[0].text
    )
    assert "do: Publish it again: mayfly retrains publish weekly" in messages[0].text
    cloud.clock = SUNDAY + timedelta(days=7, minutes=16)
    assert overdue(home_of(cloud, print), changed_at=SUNDAY) == [
        f"weekly of {iso(SUNDAY + timedelta(days=7))}"
    ]


@pytest.mark.parametrize(
    ("off", "why"),
    [
        (timedelta(days=7), "5 minutes ahead at most"),  # it would use next Sunday up
        (timedelta(minutes=6), "5 minutes ahead at most"),
        (-timedelta(hours=2, seconds=1), "2 hours back at most"),
        (-timedelta(days=31), "2 hours back at most"),  # it would count towards last month
    ],
)
def test_a_time_that_is_not_now_is_refused_and_told(make_cloud, off, why):
    cloud, _ = make_cloud()
    cloud.clock, messages = SUNDAY, []
    write_published(cloud.objects, replace(PUBLISHED, published_at=SUNDAY - timedelta(days=3)))
    event = {"retrain": "weekly", "scheduled_time": iso(SUNDAY + off)}
    told = called(cloud, event, messages=messages)
    assert told["retrains"] == {f"weekly {iso(SUNDAY + off)}": "refused"}
    assert told["problems"] == {} and cloud.objects.list(prefix="scheduled/") == ()
    (message,) = [one for one in messages if "weekly" in one.subject]
    assert message.subject == "mayfly weekly: a call was refused"
    assert why in message.text and "request-1" in message.text


@pytest.mark.parametrize("off", [timedelta(minutes=4), timedelta(0), -timedelta(hours=1, minutes=59)])
def test_a_late_call_and_a_fast_clock_are_taken(make_cloud, off):
    cloud, _ = make_cloud()
    cloud.clock = SUNDAY
    called(cloud, {"retrain": "weekly", "scheduled_time": iso(SUNDAY + off)})
    entry, _ = read_entry(cloud.objects, entry_key("weekly", SUNDAY + off))
    assert entry.called_by == "request-1"


def test_a_time_used_twice_is_told_once_for_each_call(make_cloud):
    cloud, _ = make_cloud()
    cloud.clock, messages = SUNDAY, []
    event, key = {"retrain": "weekly", "scheduled_time": iso(SUNDAY)}, entry_key("weekly", SUNDAY)
    # Lambda repeats a call under its id
    for request_id in ("request-1", "request-1", "request-2", "request-2"):
        called(cloud, event, messages=messages, request_id=request_id)
    weekly = [message for message in messages if "weekly" in message.subject]
    assert [message.subject for message in weekly] == [
        "mayfly weekly: refused",  # nothing was published
        "mayfly weekly: a time was called twice",
    ]
    assert "request request-1" in weekly[1].text and "request request-2" in weekly[1].text
    for number in range(3, 30):
        called(cloud, event, messages=messages, request_id=f"request-{number}")
    entry, _ = read_entry(cloud.objects, key)
    assert entry.called_again == tuple(f"request-{number}" for number in range(2, 2 + MOST_CALLS_AGAIN))
    assert sum("called twice" in message.subject for message in messages) == MOST_CALLS_AGAIN


@pytest.mark.parametrize("mine", [True, False])
def test_an_event_settles_its_run_and_a_foreign_one_is_dropped(make_cloud, mine):
    cloud, record = make_cloud(driver="control")
    called(cloud)
    (instance_id,) = cloud.machines
    cloud.end(instance_id, "Client.UserInitiatedShutdown")
    cloud.clock += timedelta(minutes=2)
    told = called(
        cloud,
        {**ENDED, "detail": {"instance-id": instance_id if mine else "i-elsewhere", "state": "terminated"}},
    )
    assert told["settled"] == ({record.run_id: "running"} if mine else {})  # with its next machine
    assert ("dropped" in told) != mine
    assert len(cloud.machines) == 1 + mine


def test_an_event_about_a_run_without_a_record_is_dropped(make_cloud, monkeypatch):
    cloud, record = make_cloud(driver="control")
    by_hand = "20260101-000000-by-hand-abcd"
    monkeypatch.setattr(cloud, "run_of", lambda *, instance_id: by_hand)
    told = called(cloud, {**ENDED, "detail": {"instance-id": "i-by-hand", "state": "terminated"}})
    assert told["dropped"] == f"i-by-hand is of {by_hand}, which has no record" and not told["settled"]


def test_an_unreadable_record_is_reported_and_fails_no_call(make_cloud, monkeypatch):
    cloud, record = make_cloud()
    cloud.objects.write(record_key(record.run_id), to_json(replace(record, format=99)))
    monkeypatch.setattr(cloud, "run_of", lambda *, instance_id: record.run_id)
    for event in ({}, {**ENDED, "detail": {"instance-id": "i-1", "state": "terminated"}}):
        told = called(cloud, event)
        assert told == {"settled": {record.run_id: "unreadable"}, "retrains": {}, "problems": {}}


def test_a_run_that_both_look_at_is_started_once(make_cloud):
    cloud, record = make_cloud(driver="control")
    called(cloud)
    settle_all(cloud)
    called(cloud)
    assert len(cloud.machines) == 1
    assert read_record(cloud.objects, record.run_id)[0].driver == "control"


def test_a_missed_time_is_overdue_a_quarter_of_an_hour_later(make_cloud):
    cloud, _ = make_cloud()
    home, before = home_of(cloud, print), SUNDAY - timedelta(days=3)
    cloud.clock = SUNDAY + timedelta(minutes=16)
    assert overdue(home, changed_at=before) == []  # nothing was published
    write_published(cloud.objects, replace(PUBLISHED, published_at=before))
    assert overdue(home, changed_at=before) == ["weekly of 2026-11-22T03:00:00Z"]
    # no time of the schedule that applies since then
    assert overdue(home, changed_at=SUNDAY + timedelta(minutes=1)) == []
    cloud.clock = SUNDAY + timedelta(minutes=14)
    assert overdue(home, changed_at=before) == []
    begin_entry(cloud.objects, "weekly", SUNDAY, cloud.clock)
    cloud.clock = SUNDAY + timedelta(days=6)
    assert overdue(home, changed_at=before) == []


def test_a_retrain_with_a_spoiled_entry_holds_up_no_other(make_cloud):
    cloud, record = make_cloud(driver="control")
    cloud.clock = max(cloud.clock, SUNDAY)
    begin_entry(cloud.objects, "weekly", SUNDAY, cloud.clock)
    cloud.objects.write(entry_key("spoiled", SUNDAY), b"{}")
    told = called(cloud, retrains=[replace(WEEKLY, name="spoiled"), WEEKLY])
    assert told["retrains"] == {"weekly 2026-11-22T03:00:00Z": "refused"} and told["settled"].keys() == {
        record.run_id
    }
    assert told["problems"].keys() == {"spoiled"}


@pytest.mark.parametrize("name", ["", "../weekly", "a/b", "x" * 25, "weekly\n"])
def test_an_event_with_a_name_that_no_retrain_has_writes_nothing(make_cloud, name):
    cloud, _ = make_cloud()
    before = set(cloud.objects.stored)
    told = called(cloud, {"retrain": name, "scheduled_time": "2026-11-22T03:00:00Z"})
    assert "is not a retrain" in str(told["problems"])
    assert not [key for key in cloud.objects.stored if key not in before and not key.startswith("runs/")]
