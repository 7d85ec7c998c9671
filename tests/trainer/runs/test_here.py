"""A run on a machine of its caller's own: what is decided about it, and by whom."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from trainer.runs.actions import Close, Store, Wait, WriteStop
from trainer.runs.attempts import Attempt
from trainer.runs.here import LATE
from trainer.runs.keys import own_keys
from trainer.runs.lease import LEASE, SLACK
from trainer.runs.observation import Observation
from trainer.runs.outcome import STOP_GRACE
from trainer.runs.receipt import make_receipt
from trainer.runs.reconcile import reconcile
from trainer.runs.record import RunRecord
from trainer.runs.record_json import record_from_json, to_json
from trainer.runs.reports import Heartbeat, NodeResult
from trainer.runs.stored_receipt import receipt_from_json

USER = "AROA1EXAMPLE:me@example.org"


@pytest.fixture
def record(make_record: Any) -> RunRecord:
    about = {"place": "here", "user_id": USER, "host": "desk", "ladder": (), "state": "running"}
    blank = make_record(**about)
    return replace(blank, attempts=(Attempt(number=1, created_at=blank.created_at),))


def beat(record: RunRecord, after: timedelta) -> Heartbeat:
    at = record.created_at + after
    return Heartbeat(instance_id="", at=at, lease_until=at + LEASE, phase="train")


def outcome(actions: Any) -> str:
    (store,) = actions
    assert isinstance(store, Store)
    return str(store.record.outcome)


def test_it_is_read_back_and_names_its_callers_keys(record):
    assert record_from_json(to_json(record)) == record
    assert record.nodes == (own_keys(USER, record.run_id),)
    assert record.nodes[0].result == f"attempts/{USER}/{record.run_id}/1/0/result.json"
    assert record.nodes[0].lease.startswith(f"attempts/{USER}/")  # none of the sweeper's


@pytest.mark.parametrize("user_id", ["", "../AIDA", "AIDAEXAMPLE/x", "AROA1EXAMPLE:a/b", "AIDA*EXAMPLE"])
def test_a_record_whose_user_could_be_another_key_is_refused(record, user_id):
    with pytest.raises(ValueError, match="no user of its machine"):
        record_from_json(to_json(replace(record, user_id=user_id)))


def test_it_runs_until_its_agent_reports(record):
    now = record.created_at + timedelta(minutes=5)
    quiet = Observation(heartbeat=beat(record, timedelta(minutes=5)))
    assert reconcile(record, quiet, now) == (Wait(why=""),)
    assert reconcile(record, Observation(), now) == (Wait(why=""),)  # silent, which may be its network
    assert outcome(reconcile(record, Observation(result=NodeResult(state="done")), now)) == "done"
    assert (
        outcome(reconcile(record, Observation(result=NodeResult(state="stopped", exit_code=130)), now))
        == "stopped"
    )
    assert (
        outcome(reconcile(record, Observation(result=NodeResult(state="expired", exit_code=104)), now))
        == "expired"
    )
    ended = replace(record, state="ending", outcome="done", ending_at=now)
    assert isinstance(reconcile(ended, Observation(), now)[0], Wait)
    (close,) = reconcile(ended, Observation(result=NodeResult(state="done"), models=()), now)
    assert isinstance(close, Close) and close.record.state == "closed"


def test_a_stop_is_passed_on_and_ends_a_silent_run(record):
    asked = replace(record, stop_requested_at=record.created_at + timedelta(minutes=1))
    now = record.created_at + timedelta(minutes=2)
    at_work = Observation(heartbeat=beat(record, timedelta(minutes=2)))
    assert reconcile(asked, at_work, now) == (WriteStop(attempt=1, requested_at=asked.stop_requested_at),)
    assert isinstance(reconcile(asked, replace(at_work, stop_written=True), now)[0], Wait)
    late = asked.stop_requested_at + STOP_GRACE + LEASE + SLACK + timedelta(minutes=2)
    assert outcome(reconcile(asked, replace(at_work, stop_written=True), late)) == "stopped"


def test_past_its_deadline_one_that_is_silent_is_closed(record):
    end = record.deadline + LATE + timedelta(seconds=1)
    heard = Observation(heartbeat=beat(record, end - record.created_at))
    assert isinstance(reconcile(record, heard, end)[0], Wait)
    assert outcome(reconcile(record, Observation(), end)) == "interrupted"


def test_its_receipt_has_no_instance_and_no_dollars(record):
    closed = replace(
        record, state="closed", outcome="done", closed_at=record.created_at + timedelta(minutes=1)
    )
    receipt = make_receipt(closed, Observation(result=NodeResult(state="done"), models=()))
    assert receipt["instances"] == []
    nothing = dict.fromkeys(("spent_low", "spent_high", "spot_saved_low", "spot_saved_high"), 0.0)
    assert receipt["dollars"] == {"estimated": 0.5, **nothing}
    assert receipt["host"] == "desk" and receipt["note"].startswith("No instance")
    assert receipt_from_json(json.dumps(receipt).encode(), closed.run_id)["host"] == "desk"
