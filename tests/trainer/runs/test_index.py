"""The index of runs, against the embedded AWS: an open run is in it, and one that is missing or damaged is
made anew.
"""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timezone

import pytest

from trainer.aws.objects import Conflict, open_objects
from trainer.base.errors import ConnectionFailed
from trainer.runs.index import (
    INDEX_KEY,
    LAST_ENDED,
    TELLING,
    RunIndex,
    begin_run,
    claim_messages,
    enter_missing,
    note_told,
    read_index,
    take_out,
)
from trainer.runs.store import create_record, receipt_key

START = datetime(2026, 11, 20, 12, tzinfo=timezone.utc)
OLD, NEW = "20261120-120000-crypto-k3v9", "20261121-120000-crypto-m4w8"


@pytest.fixture
def objects(access, bucket):
    return open_objects(access, bucket)


def test_a_run_is_in_the_index_until_it_is_taken_out(objects, make_record):
    record = make_record(run_id=OLD)
    begin_run(objects, record)
    assert read_index(objects) == RunIndex(open={OLD: record.created_at})
    take_out(objects, closed=[OLD])
    assert read_index(objects) == RunIndex(ended=(OLD,), untold={OLD: None})


def test_a_message_is_one_callers_until_its_claim_is_old(objects, make_record):
    for run_id in (OLD, NEW):
        begin_run(objects, make_record(run_id=run_id))
        take_out(objects, closed=[run_id])
        take_out(objects, closed=[run_id])  # by another who looked at once
    assert claim_messages(objects, [OLD, "another"], START) == (OLD,)
    assert claim_messages(objects, [OLD, NEW], START + TELLING) == (NEW,)
    note_told(objects, [NEW])
    take_out(objects, closed=[NEW])
    assert read_index(objects).untold == {OLD: START}
    assert claim_messages(objects, [OLD, NEW], START + TELLING * 1.1) == (OLD,)


def test_the_index_of_an_earlier_version_has_no_untold_runs(objects):
    old = {"format": 1, "open": [], "ended": [{"run_id": OLD}]}
    objects.put(key=INDEX_KEY, body=json.dumps(old).encode())
    objects.list = None
    assert read_index(objects) == RunIndex(ended=(OLD,))


def test_a_missing_index_is_made_from_one_listing(objects, make_record):
    """The older run closed after its receipt; the younger one has a receipt, and its launcher died before it
    closed.
    """
    for run_id in (OLD, NEW):
        create_record(objects, make_record(run_id=run_id))
    for run_id in (OLD, NEW):
        objects.put(key=receipt_key(run_id), body=b"{}")
    shown = objects.list

    def dated(*, prefix):  # S3 dates objects to the second; here all are of one
        late = {f"runs/{OLD}/run.json": 2, receipt_key(OLD): 1, receipt_key(NEW): 1}
        now = {item.key: item.modified_at for item in shown(prefix=prefix)}
        first = min(now.values())
        return tuple(
            replace(item, modified_at=first.replace(year=first.year + late.get(item.key, 0)))
            for item in shown(prefix=prefix)
        )

    objects.list = dated
    index = read_index(objects)
    assert (list(index.open), index.ended) == ([NEW], (OLD,))
    assert index.untold == {}  # else control would tell the end of every run that there ever was
    objects.list = None  # from here on it is read, and not made again
    assert read_index(objects) == index


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[" * 200_000,
        b'{"format": 99}',
        b'{"format": 1, "open": [{"run_id": "../x", "since": "2026-11-20T12:00:00Z"}]}',
        b'{"format": 1, "open": [{"run_id": "x"}]}',
        b'{"format": 1, "ended": ["x"]}',
        b'{"format": 1, "untold": [{"run_id": "x", "claimed_at": 3}]}',
    ],
    ids=lambda body: str(body[:30]),
)
def test_a_damaged_index_is_made_anew(objects, make_record, body):
    create_record(objects, make_record(run_id=OLD))
    objects.put(key=INDEX_KEY, body=body)
    assert list(read_index(objects).open) == [OLD]
    begin_run(objects, make_record(run_id=NEW))
    assert list(read_index(objects).open) == [OLD, NEW]


def test_a_key_that_no_run_has_leaves_the_index_readable(objects, make_record):
    create_record(objects, make_record(run_id=OLD))
    objects.put(key="runs/a run/run.json", body=b"{}")
    assert list(read_index(objects).open) == [OLD]
    objects.list = None  # from here on it is read, and not made again
    assert list(read_index(objects).open) == [OLD]


def test_of_two_launches_at_once_both_are_in_the_index(objects, make_record):
    put, rivals = objects.put, [make_record(run_id=NEW)]

    def raced(*, key, body, **condition):
        if rivals:
            objects.put = put
            begin_run(objects, rivals.pop())
        return put(key=key, body=body, **condition)

    objects.put = raced
    begin_run(objects, make_record(run_id=OLD))
    assert list(read_index(objects).open) == [OLD, NEW]


def test_an_index_that_cannot_be_changed_stops_before_a_record(objects, make_record):
    real = objects.put

    def put(*, key, **more):
        if key == INDEX_KEY:
            raise Conflict(key)
        return real(key=key, **more)

    objects.put = put
    with pytest.raises(ConnectionFailed, match="cannot change the index of runs"):
        begin_run(objects, make_record(run_id=OLD))
    assert objects.folders(prefix="runs/") == ()


def test_the_index_names_the_last_runs_that_ended(objects, make_record):
    index = RunIndex(open={OLD: make_record().created_at})
    for number in range(LAST_ENDED + 5):
        index = index.without([f"20261122-0000{number:02d}-a-aaaa"])
    assert len(index.ended) == LAST_ENDED and index.ended[-1] == f"20261122-0000{LAST_ENDED + 4}-a-aaaa"
    assert list(index.open) == [OLD]


def test_a_lost_entry_is_entered_again(objects, make_record):
    """As `mayfly down` does before it removes the safety net."""
    begin_run(objects, make_record(run_id=OLD))
    begin_run(objects, make_record(run_id=NEW))
    take_out(objects, closed=[], unborn=[OLD])
    assert list(read_index(objects).open) == [NEW]
    enter_missing(objects)
    assert sorted(read_index(objects).open) == [OLD, NEW]


def test_a_launch_that_slept_between_its_writes_is_entered(objects, make_record):
    put = objects.put

    def slept(*, key, **more):
        if key == f"runs/{OLD}/run.json":
            take_out(objects, closed=[], unborn=[OLD])
        return put(key=key, **more)

    objects.put = slept
    begin_run(objects, make_record(run_id=OLD))
    assert list(read_index(objects).open) == [OLD]


def test_a_run_of_days_is_among_the_last_that_ended(objects, make_record):
    """Runs that began after it have ended long before."""
    begin_run(objects, make_record(run_id=OLD))
    later = [f"202611{21 + number // 24}-{number % 24:02d}0000-a-aaaa" for number in range(LAST_ENDED + 5)]
    for run_id in later:
        begin_run(objects, make_record(run_id=run_id))
        take_out(objects, closed=[run_id])
    take_out(objects, closed=[OLD])
    take_out(objects, closed=[later[-1]])  # by another who looked at once
    assert read_index(objects).ended == (*later[-LAST_ENDED + 1 :], OLD)
