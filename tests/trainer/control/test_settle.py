"""Whoever looks settles what is open: at a cost that follows the open runs, and whoever was killed before."""

from __future__ import annotations

import math
import threading
from contextlib import suppress
from datetime import timedelta

import pytest

from tests.trainer.control.conftest import MemoryCloud
from trainer.cli.verbs.status import runs_shown
from trainer.control.drive import drive
from trainer.control.settle import UNBORN, settle_all
from trainer.runs.index import INDEX_KEY, begin_run, read_index
from trainer.runs.store import create_record, read_record, receipt_key, record_key

OPEN = "20261121-120000-crypto-m4w8"


@pytest.fixture
def used(make_cloud, make_record):
    """Return a cloud in which so many runs have closed, and count the calls of what is done there from then
    on.
    """

    def build(closed: int):
        cloud, record = make_cloud()
        drive(cloud, record.run_id, poll_seconds=5.0, sleep=cloud.sleep)
        bodies = {
            key(record.run_id): cloud.objects.get(key=key(record.run_id)).body
            for key in (receipt_key, record_key)
        }
        for number in range(closed - 1):
            run_id = f"20251120-{number:06d}-crypto-aaaa"
            for key, body in bodies.items():
                cloud.objects.write(
                    key.replace(record.run_id, run_id), body.replace(record.run_id.encode(), run_id.encode())
                )
        del cloud.objects.stored[INDEX_KEY]
        read_index(cloud.objects)
        return cloud, counted(cloud)

    return build


def counted(cloud) -> list[str]:
    """Return the calls of S3 and EC2 from now on; a listing is a call for each 1,000 entries."""
    calls: list[str] = []

    def counting(owner, name):
        operation = getattr(owner, name)

        def call(**named):
            answer = operation(**named)
            pages = math.ceil(len(answer) / 1000) if name in ("list", "folders") else 1
            calls.extend([f"{name} {named.get('key', named.get('prefix', ''))}"] * max(pages, 1))
            return answer

        setattr(owner, name, call)

    for name in ("get", "head", "put", "list", "folders"):
        counting(cloud.objects, name)
    for name in ("instances", "scheduled"):
        counting(cloud, name)
    return calls


def test_settling_costs_the_same_after_ten_thousand_closed_runs(used, make_record):
    costs = []
    for closed in (10, 10_000):
        cloud, calls = used(closed)
        marks = [len(calls)]
        shown, _ = runs_shown(cloud)
        marks.append(len(calls))
        settle_all(cloud)
        marks.append(len(calls))
        begin_run(cloud.objects, make_record(run_id=OPEN, created_at=cloud.now()))
        settle_all(cloud)
        marks.append(len(calls))
        costs.append([after - before for before, after in zip(marks, marks[1:], strict=False)])
        assert len(shown) == 5 and shown[-1]["state"] == "done"
        assert not [call for call in calls if call.startswith(("list runs/", "folders"))]
    assert costs[0] == costs[1]
    assert costs[0][:2] == [6, 1], "the index, five receipts; the index"


def test_several_open_runs_are_looked_at_at_once(make_cloud, make_record, monkeypatch):
    cloud, record = make_cloud()
    begin_run(cloud.objects, make_record(run_id=OPEN))
    records = {record_key(record.run_id), record_key(OPEN)}
    meeting, read = threading.Barrier(2, timeout=500), cloud.objects.get  # passes only where two read

    def get(*, key, **named):
        if key in records:
            records.discard(key)
            meeting.wait()
        return read(key=key, **named)

    monkeypatch.setattr(cloud.objects, "get", get)
    assert [item.run_id for item in settle_all(cloud).settled] == [record.run_id, OPEN]


def test_a_killed_registration_leaves_no_run_outside_the_index(make_cloud, make_record, killed):
    for number in range(1, 5):  # before and after each of the two writes
        cloud, _ = make_cloud()
        cloud.kill_at = number
        with pytest.raises(killed):
            begin_run(cloud.objects, make_record(run_id=OPEN))
        cloud.kill_at = None
        begun = cloud.objects.get(key=record_key(OPEN)) is not None
        assert begun == (number == 4)
        assert OPEN in read_index(cloud.objects).open or not begun
        settled = settle_all(cloud)  # at once: it may be between its two writes
        assert (OPEN in read_index(cloud.objects).open) == (number > 1)
        assert settled.problems == {}
        cloud.clock += UNBORN + timedelta(minutes=1)
        settled = settle_all(cloud)
        assert read_index(cloud.objects).open == {}
        assert [item.receipt["state"] for item in settled.settled if item.run_id == OPEN] == [
            "interrupted"
        ] * begun


def test_a_run_killed_at_any_write_of_its_end_is_settled(make_cloud, killed):
    cloud, record = make_cloud()
    cloud.work = timedelta(seconds=10)
    drive(cloud, record.run_id, poll_seconds=5.0, sleep=cloud.sleep)
    for number in range(
        len(cloud.calls) - 5, len(cloud.calls) + 1
    ):  # receipt, record, index, each before and after
        cloud, record = make_cloud()
        cloud.work, cloud.kill_at = timedelta(seconds=10), number
        with pytest.raises(killed):
            drive(cloud, record.run_id, poll_seconds=5.0, sleep=cloud.sleep)
        cloud.kill_at = None
        closed = read_record(cloud.objects, record.run_id)[0].state == "closed"
        assert closed or record.run_id in read_index(cloud.objects).open
        settle_all(cloud)
        index = read_index(cloud.objects)
        assert (dict(index.open), index.ended) == ({}, (record.run_id,)), number
        assert cloud.objects.get(key=receipt_key(record.run_id)) is not None


def test_a_launcher_that_slept_for_a_day_starts_nothing(make_cloud, make_record):
    """Its entry was taken out of the index meanwhile; an open run that the index lacks has no machine."""
    cloud, record = make_cloud()
    cloud.clock += UNBORN + timedelta(minutes=1)
    late = make_record(run_id=OPEN, deadline=record.deadline + timedelta(days=9))
    create_record(cloud.objects, late)
    receipt = drive(cloud, OPEN, poll_seconds=5.0, sleep=cloud.sleep)
    assert (receipt["state"], receipt["instances"], cloud.fleets) == ("interrupted", [], {})
    assert "slept" in receipt["error"]["what"]


def test_one_spoiled_run_holds_up_no_other(make_cloud, make_record):
    cloud, record = make_cloud()
    begin_run(cloud.objects, make_record(run_id=OPEN))
    cloud.objects.write(record_key(record.run_id), b"{")
    cloud.clock += timedelta(minutes=10)
    settling = settle_all(cloud)
    assert (list(settling.problems), [item.run_id for item in settling.settled]) == ([record.run_id], [OPEN])
    assert list(read_index(cloud.objects).open) == [record.run_id]
    assert [item["state"] for item in runs_shown(cloud)[0]] == ["unreadable", "interrupted"]


def test_a_launch_killed_at_any_write_is_never_lost(make_record, killed):
    """Each writer of the index is killed before and after each write: what has a record is in the index."""
    for number in range(1, 6):
        cloud = MemoryCloud(make_record().created_at)
        cloud.kill_at = number
        with suppress(killed):
            begin_run(cloud.objects, make_record())
        cloud.kill_at = None
        there = record_key(make_record().run_id) in cloud.objects.stored
        looked = settle_all(cloud)
        assert [item.run_id for item in looked.settled] == [make_record().run_id] * there, number
    assert there
