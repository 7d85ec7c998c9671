"""The messages of control about ends of runs: each is sent once, whoever saw the end."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from tests.trainer.control.conftest import CallerKilled
from tests.trainer.control.functions.test_control import ENDED, called, home_of
from tests.trainer.retrains.test_decision import SUNDAY
from trainer.base.errors import ConnectionFailed
from trainer.control.drive import drive, start, step
from trainer.control.functions.control import answer
from trainer.control.settle import settle_all
from trainer.retrains.entries import (
    begin_entry,
    change_entry,
    entry_key,
    read_entry,
    run_id_of,
)
from trainer.runs.index import TELLING, begin_run, note_shown, read_index
from trainer.runs.store import read_record, receipt_key


def ended(cloud, record, *, by=settle_all):
    """Let a run of a desk that is gone come to its end, and somebody close it."""
    start(cloud, record.run_id, poll_seconds=5.0, sleep=cloud.sleep)
    for _ in range(3):
        cloud.clock += timedelta(minutes=2)
        by(cloud)
    assert read_record(cloud.objects, record.run_id)[0].state == "closed"


def subjects(messages):
    return [message.subject for message in messages]


@pytest.mark.parametrize("outcome", ["done", "failed"])
def test_an_end_that_any_command_saw_is_told_once(make_cloud, outcome):
    """`mayfly status` closed it, say, or another launch: control was not there."""
    cloud, record = make_cloud()
    cloud.node_works = outcome == "done"

    def look(cloud):
        for instance_id in list(cloud.machines) if outcome == "failed" else []:
            cloud.end(instance_id, "Client.InstanceInitiatedShutdown")
        settle_all(cloud)

    ended(cloud, record, by=look)
    messages = []
    assert called(cloud, messages=messages)["settled"] == {}
    assert subjects(messages) == [f"mayfly run {record.run_id}: {outcome}"]
    assert called(cloud, messages=messages)["problems"] == {} and len(messages) == 1


@pytest.mark.parametrize("desk", ["attached", "gone", "left"])
def test_an_end_that_an_attached_command_shows_sends_no_message(make_cloud, desk):
    """EC2 tells control first, which closes the run; a desk sees that at its next look."""
    cloud, record = make_cloud()
    attached = desk == "attached"
    if desk == "left":
        start(cloud, record.run_id, poll_seconds=5.0, sleep=cloud.sleep)
    while step(cloud, record.run_id).moved:
        pass
    (instance_id,) = cloud.machines
    cloud.end(instance_id, "Client.InstanceInitiatedShutdown")
    cloud.clock += timedelta(minutes=2)

    def show(seconds):
        note_shown(cloud.objects, drive(cloud, record.run_id, poll_seconds=5.0, sleep=cloud.sleep))

    event = {**ENDED, "detail": {"instance-id": instance_id, "state": "terminated"}}
    messages, looks = [], show if attached else cloud.sleep
    home = home_of(cloud, messages.append)
    told = answer(event, home, poll_seconds=5.0, time_is_left=lambda: False, sleep=looks)
    assert told["settled"] == {record.run_id: "failed"}
    assert subjects(messages) == [f"mayfly run {record.run_id}: failed"] * (not attached)
    assert not read_index(cloud.objects).untold


def test_a_desk_that_could_not_see_the_end_has_not_told_it(make_cloud):
    cloud, record = make_cloud()
    ended(cloud, record)
    note_shown(cloud.objects, {"run_id": record.run_id, "state": "unconfirmed"})
    messages = []
    called(cloud, messages=messages)
    assert subjects(messages) == [f"mayfly run {record.run_id}: done"]


def test_a_run_that_control_took_over_is_told(make_cloud):
    cloud, record = make_cloud()
    start(cloud, record.run_id, poll_seconds=5.0, sleep=cloud.sleep)
    cloud.end(*cloud.machines, "Server.InternalError")
    messages = []
    for _ in range(6):
        cloud.clock += timedelta(minutes=3)
        called(cloud, messages=messages)
    assert read_record(cloud.objects, record.run_id)[0].driver == "control" and len(cloud.machines) == 2
    assert subjects(messages) == [f"mayfly run {record.run_id}: done"]


def test_two_calls_at_once_send_one_message(make_cloud):
    cloud, record = make_cloud()
    ended(cloud, record)
    messages = []

    def publish(message):
        called(cloud, messages=messages)  # while the first call's message is on its way
        messages.append(message)

    called(cloud, publish=publish)
    assert subjects(messages) == [f"mayfly run {record.run_id}: done"]


def test_a_call_that_died_after_its_message_repeats_it_once(make_cloud):
    """At least once: SNS takes no token that would tell two messages of one end apart."""
    cloud, record = make_cloud()
    ended(cloud, record)
    messages = []

    def publish(message):
        messages.append(message)
        raise CallerKilled("after the message")

    with pytest.raises(CallerKilled):
        called(cloud, publish=publish)
    called(cloud, messages=messages)
    assert len(messages) == 1, "the call may still be at work"
    cloud.clock += 2 * TELLING
    for _ in range(2):
        called(cloud, messages=messages)
    assert len(messages) == 2


def test_a_message_that_cannot_be_sent_holds_up_no_other(make_cloud):
    cloud, record = make_cloud()
    other = replace(record, run_id=f"{record.run_id[:-4]}zzzz")
    ended(cloud, record)
    begin_run(cloud.objects, other)
    ended(cloud, other)
    messages = []

    def publish(message):
        if record.run_id in message.subject:
            raise ConnectionFailed("SNS is away")
        messages.append(message)

    told = called(cloud, publish=publish)
    assert told["problems"] == {record.run_id: "SNS is away."}
    assert [other.run_id in subject for subject in subjects(messages)] == [True]
    cloud.clock += 2 * TELLING
    assert called(cloud, messages=messages)["problems"] == {}
    assert subjects(messages)[1:] == [f"mayfly run {record.run_id}: done"]


def test_an_end_whose_receipt_cannot_be_read_is_told(make_cloud):
    cloud, record = make_cloud()
    ended(cloud, record)
    cloud.objects.write(receipt_key(record.run_id), b"{}")
    messages = []
    assert called(cloud, messages=messages)["problems"] == {}
    assert subjects(messages) == [f"mayfly run {record.run_id}: ended"]
    assert f"why: cannot read the receipt of run {record.run_id}" in messages[0].text


def scheduled(make_cloud, **changed):
    """Return a cloud with the run of a scheduled time, registered as `retrain` does."""
    run_id = run_id_of("weekly", SUNDAY)
    times = {"created_at": SUNDAY, "preflight_at": SUNDAY, "deadline": SUNDAY + timedelta(hours=1)}
    cloud, _ = make_cloud(run_id=run_id, driver="control", **times, **changed)
    begin_entry(cloud.objects, "weekly", SUNDAY, SUNDAY)
    entry, etag = read_entry(cloud.objects, entry_key("weekly", SUNDAY))
    change_entry(cloud.objects, replace(entry, state="training", run_id=run_id), etag, SUNDAY)
    return cloud, run_id


@pytest.mark.parametrize("closer", ["status", "control"])
def test_a_scheduled_run_is_told_once_whoever_closed_it(make_cloud, closer):
    cloud, run_id = scheduled(make_cloud)
    cloud.node_works, messages = False, []
    called(cloud, messages=messages)
    for _ in range(15):
        cloud.clock += timedelta(minutes=5)
        settle_all(cloud) if closer == "status" else called(cloud, messages=messages)
    for _ in range(2):
        called(cloud, messages=messages)
    assert read_record(cloud.objects, run_id)[0].state == "closed"
    (message,) = messages
    assert message.subject == "mayfly weekly: failed" and f"mayfly receipts {run_id}" in message.text
    assert not read_index(cloud.objects).untold


def test_a_full_and_interrupted_sunday_goes_on_and_says_so(make_cloud):
    """No pool has capacity at three in the morning; the machine that it gets later is taken back."""
    cloud, run_id = scheduled(make_cloud, queue_seconds=3600.0)
    cloud.full, messages = {"us-east-1a", "us-east-1b"}, []
    cloud.losses = {1: (timedelta(minutes=2), "Server.SpotInstanceTermination")}
    for number in range(10):
        called(cloud, messages=messages, looks=0)
        if number == 4:
            cloud.full.clear()
        for _ in range(10):  # until the next regular call
            cloud.sleep(30.0)
    record = read_record(cloud.objects, run_id)[0]
    assert (record.outcome, len(record.attempts), len(cloud.alive())) == ("done", 2, 0), record.error
    assert read_entry(cloud.objects, entry_key("weekly", SUNDAY))[0].state == "done"
    (message,) = messages
    assert message.subject == "mayfly weekly: done"
    assert "note: attempt 1 lost its machine: " in message.text
    assert "note: every pool was full: attempt 1 waited 25 minutes for capacity" in message.text
