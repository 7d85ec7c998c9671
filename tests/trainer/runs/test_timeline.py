"""The timeline of a run: every decision, answer, state and report of all attempts, in order, with its
reason.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from tests.records import NOON, at, created, described, intent, make_record, rung, seen
from trainer.runs.attempts import Attempt, Queue
from trainer.runs.observation import Observation
from trainer.runs.record import RunRecord
from trainer.runs.reports import Heartbeat, NodeResult
from trainer.runs.start_file import StartFile
from trainer.runs.timeline import as_rows, timeline

FULL = "InsufficientInstanceCapacity"


def waiting_from(seconds: float) -> Queue:
    begins, ends = at(seconds), at(seconds + 600)
    return Queue(
        since=begins, until=ends, deadline=NOON + timedelta(hours=1), next_at=at(30), first=1, walks=2
    )


def record_of_two_attempts() -> RunRecord:
    """Return a run that found its pools full, lost a spot machine, and was done by another."""
    refused = intent(outcome="refused", error_code=FULL, error_message="no", called_at=at(2), calls=1)
    first = Attempt(
        number=1,
        launches=(refused, created(token="t1", intended_at=at(30), called_at=at(31), calls=1)),
        created_at=at(31),
        queue=waiting_from(3),
        ended_at=at(400),
        cause="lost",
        error={"what": "the spot instance i-1 was taken back", "why": "Server.SpotInstanceTermination"},
    )
    again = created(token="t2", intended_at=at(405), called_at=at(406), calls=2, instance_ids=("i-2",))
    second = Attempt(number=2, launches=(replace(again, kill_armed_at=at(408)),), created_at=at(406))
    taken: dict[str, Any] = {"running_seen_at": at(50), "reason": "Server.SpotInstanceTermination"}
    return make_record(
        attempts=(first, second),
        instances=(
            seen(launched_at=at(31), terminated_at=at(390), **taken),
            seen(instance_id="i-2", attempt=2, launched_at=at(406), terminated_at=at(900)),
        ),
        state="closed",
        outcome="done",
        ending_at=at(880),
        closed_at=at(905),
    )


BEAT = Heartbeat(
    instance_id="i-1", at=at(380), lease_until=at(500), phases={"boot": at(60), "train": at(120)}
)
REPORTS = {
    1: Observation(heartbeat=BEAT),
    2: Observation(
        start=StartFile(run_id="r", attempt=2, finished=({"piece": "BTC-USD"},)),
        result=NodeResult(state="done", phases={"boot": at(430), "train": at(450), "end": at(870)}),
    ),
}


def test_all_attempts_are_told_in_order_with_reasons():
    events = timeline(record_of_two_attempts(), REPORTS)
    assert [event.at for event in events] == sorted(event.at for event in events)
    told = [(event.attempt, event.by, event.what) for event in events]
    assert told[0] == (0, "desk", "registered") and told[-1] == (0, "desk", "closed")
    for expected in (
        (1, "aws", "refused g5.12xlarge on-demand in us-east-1a"),
        (1, "desk", "waits for capacity"),
        (1, "aws", "created i-1"),
        (1, "aws", "i-1 seen running"),
        (1, "node", "phase train"),
        (1, "node", "last heartbeat"),
        (1, "aws", "i-1 ended, described terminated"),
        (1, "desk", "lost its machine"),
        (2, "desk", "begins with 1 finished piece and 0 files of checkpoints"),
        (2, "aws", "created i-2"),
        (2, "desk", "armed the second schedule"),
        (2, "node", "reported done"),
        (0, "desk", "ends: done"),
    ):
        assert expected in told, expected
    why = {event.what: event.why for event in events}
    assert why["refused g5.12xlarge on-demand in us-east-1a"] == f"{FULL}: no"
    assert why["lost its machine"].startswith("the spot instance i-1 was taken back (Server.Spot")
    assert told.index((1, "desk", "lost its machine")) < told.index((2, "aws", "created i-2"))


def test_an_attempt_that_begins_anew_says_so():
    empty = Observation(start=StartFile(run_id="r", attempt=1))
    (told,) = [
        one for one in timeline(record_of_two_attempts(), {1: empty, 2: empty}) if "begins" in one.what
    ]
    assert (told.attempt, told.why) == (2, "S3 has nothing of earlier work that verifies")
    resumed = replace(record_of_two_attempts(), parent="r0", parent_counts="all")
    assert [one.attempt for one in timeline(resumed, {1: empty}) if "begins" in one.what] == [1]


def test_the_timeline_names_who_drives_and_when_it_tries_again():
    refused = intent(outcome="refused", error_code=FULL, called_at=at(2), calls=1)
    waiting = Attempt(number=1, launches=(refused,), queue=waiting_from(3))
    record = make_record(driver="control", attempts=(waiting,), stop_requested_at=at(20))
    last = timeline(record, {})[-1]
    assert (last.by, last.what, last.at) == ("control", "next try", at(30))
    assert [event.what for event in timeline(record, {})][-2] == "stop requested"


def test_the_timeline_says_when_control_went_on():
    launched = Attempt(number=1, launches=(intent(called_at=at(2), calls=1),))
    record = make_record(attempts=(launched,)).handed_over(at(30)).ended("failed", None, at(40))
    told = [(event.by, event.what) for event in timeline(record, {}) if event.by != "aws"]
    assert told[0] == ("desk", "registered") and told[-2:] == [
        ("control", "goes on with it"),
        ("control", "ends: failed"),
    ]
    assert {by for by, _ in told[:-2]} == {"desk"}


def test_a_failed_report_says_why():
    result = NodeResult(state="failed", phases={"end": at(90)}, failed=({"piece": "BTC-USD"},))
    record = make_record(attempts=(Attempt(number=1, launches=(created(),)),))
    rows = as_rows(timeline(record, {1: Observation(instances=(described(),), result=result)}))
    assert rows[-1] == {
        "at": "2026-11-20 12:01:30",
        "attempt": "1",
        "by": "node",
        "event": "reported failed",
        "reason": "failed: BTC-USD",
    }


def test_a_launch_time_in_whole_seconds_follows_its_call():
    called = created(called_at=at(30.6), intended_at=at(30.2), calls=1)
    attempt = Attempt(number=1, launches=(called,), created_at=at(31))
    events = timeline(make_record(attempts=(attempt,), instances=(seen(launched_at=at(30)),)), {})
    told = [event.what for event in events]
    assert told[-3:-1] == ["called CreateFleet for g5.12xlarge on-demand in us-east-1a", "created i-1"]
    assert told[-1] == "i-1 launched"
    early = timeline(make_record(attempts=(attempt,), instances=(seen(launched_at=at(29)),)), {})
    assert "i-1 launched" in [event.what for event in early if event.at == at(29)]


def test_a_continued_run_began_with_who_drove_it_then():
    start = Observation(start=StartFile(run_id="r", attempt=1, finished=({"piece": "BTC-USD"},)))
    launched = Attempt(number=1, launches=(intent(),))
    record = make_record(parent="r0", parent_counts="all", attempts=(launched,), ladder=(rung(),))
    events = timeline(record.handed_over(at(30)), {1: start})
    (begins,) = [event for event in events if event.what.startswith("begins with")]
    assert (begins.at, begins.by) == (at(1), "desk")
    assert events[0].why == "continues r0; 1 pool to ask"
