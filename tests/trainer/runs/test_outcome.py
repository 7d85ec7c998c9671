"""Endings that only the reason of EC2 or the deadline's cause tells apart. The others are in
test_reconcile.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from tests.pieces import named
from tests.records import NOON, at, created, launched, piece, seen
from trainer.runs.lease import LEASE
from trainer.runs.nodes import joined_result
from trainer.runs.observation import NodeSeen, Observation
from trainer.runs.outcome import ending_by_result, ending_of, last_complaint
from trainer.runs.record import RunRecord
from trainer.runs.reports import Heartbeat, NodeResult
from trainer.runs.timeline import timeline


@pytest.fixture
def ended(make_record):
    """A run whose one instance was terminated a minute after its launch, for a reason."""

    def build(reason: str, *, cause: str = "budget") -> RunRecord:
        launch = created(deadline=at(1800), deadline_cause=cause, intended_at=NOON)
        instance = seen(market="spot", launched_at=NOON, terminated_at=at(60), reason=reason)
        return make_record(state="running", attempts=launched(launch), instances=(instance,))

    return build


@pytest.mark.parametrize(
    ("reason", "outcome", "code", "remedy"),
    [
        ("Client.InternalError", "failed", 103, "EBS encryption"),
        ("Client.VolumeLimitExceeded", "failed", 102, "EBS volumes"),
        ("Client.InvalidSnapshot.NotFound", "failed", 103, "image line"),
        ("Server.InsufficientInstanceCapacity", "failed", 101, "launch again later"),
        ("Server.InternalError", "interrupted", 105, "Launch again"),
        ("Server.SpotInstanceTermination", "interrupted", 105, "Launch again"),
        ("Client.InstanceInitiatedShutdown", "failed", 100, "mayfly logs"),
    ],
)
def test_an_instance_that_could_not_start_has_its_remedy(ended, reason, outcome, code, remedy):
    ending = ending_of(ended(reason), Observation(), NOON + timedelta(minutes=2))
    assert (ending.outcome, ending.error["code"]) == (outcome, code)
    assert remedy in ending.error["do"]


@pytest.mark.parametrize(
    ("reason", "what"),
    [
        ("Server.SpotInstanceTermination", "the spot instance i-1 was taken back"),
        ("Client.UserInitiatedShutdown", "instance i-1 was ended from outside"),
        ("Server.InternalError", "instance i-1 was ended from outside"),
    ],
)
def test_a_spot_instance_was_taken_back_only_if_ec2_says_so(ended, reason, what):
    ending = ending_of(ended(reason), Observation(), NOON + timedelta(minutes=2))
    assert (ending.outcome, ending.error["what"], ending.error["why"]) == ("interrupted", what, reason)


def test_an_instance_ended_by_the_sweeper_fell_silent(ended):
    record = ended("Client.UserInitiatedShutdown")
    allowance = timedelta(seconds=record.ladder[0].boot_seconds)
    for late, outcome in ((timedelta(0), "interrupted"), (timedelta(seconds=20), "failed")):
        instance = replace(record.instances[0], terminated_at=NOON + allowance + late)
        ending = ending_of(
            replace(record, instances=(instance,)), Observation(), NOON + allowance + timedelta(minutes=2)
        )
        assert ending.outcome == outcome
    assert ending.error["what"] == "the node never reported"
    assert ending.error["why"] == "it never sent a heartbeat"


@pytest.mark.parametrize(("minutes", "outcome"), [(10, "interrupted"), (11, "failed")])
def test_a_node_ended_for_want_of_progress_is_told_as_one(ended, minutes, outcome):
    record, last = ended("Client.UserInitiatedShutdown"), NOON + timedelta(minutes=20)
    record = replace(record, instances=(replace(record.instances[0], terminated_at=last),))
    beat = Heartbeat(
        instance_id="i-1",
        at=last,
        lease_until=last + LEASE,
        progress_at=last - timedelta(minutes=minutes),
        progress_bound=timedelta(minutes=5),
    )
    ending = ending_of(record, Observation(heartbeat=beat), last + timedelta(minutes=1))
    assert ending.outcome == outcome
    if outcome == "failed":
        assert ending.error["what"] == "the node made no progress after 2026-11-20T12:09:00Z"


@pytest.mark.parametrize(
    ("cause", "why", "remedy"),
    [
        ("budget", "set by the budget", "--budget"),
        ("max_duration", "set by machine.max_duration", "Raise --max-duration"),
        ("default_duration", "set by the default of machine.max_duration", "Set --max-duration"),
        ("cap", "set by the stack's max lifetime", "pulumi up"),
        ("estimate", "set by three times the slow estimate", "windows_per_second"),
    ],
)
def test_an_expired_run_names_instant_and_cause(ended, cause, why, remedy):
    record = ended("", cause=cause)
    record = replace(
        record, instances=(replace(record.instances[0], state="running", terminated_at=None, proof=""),)
    )
    ending = ending_of(record, Observation(), NOON + timedelta(minutes=30))
    assert ending.outcome == "expired"
    assert ending.error["what"] == "the run reached its deadline at 2026-11-20T12:30:00Z"
    assert ending.error["why"] == why and remedy in ending.error["do"]


@pytest.mark.parametrize(
    ("stage", "why"),
    [
        ("code/x.whl has sha256 00, the tag says 11", "code/x.whl has sha256 00, the tag says 11"),
        ("", "failed: fetch the code (exit code 1)"),
    ],
)
def test_a_failed_boot_says_what_its_stage_said(ended, stage, why):
    said = ["fetch the code", *([stage] if stage else []), "failed: fetch the code (exit code 1)"]
    boot_log = "".join(f"bootstrap: {line}\n" for line in (*said, "powering off, exit code 1"))
    assert last_complaint(boot_log) == why
    record = ended("Client.InstanceInitiatedShutdown")
    found = ending_of(record, Observation(boot_log=boot_log), at(70))
    assert found.outcome == "failed" and found.error["why"].endswith(f"; {why}")
    assert last_complaint("install: there is no lock\nbootstrap: failed: install (exit code 103)") == (
        "there is no lock"
    )


def test_an_end_from_outside_says_how_to_continue(ended):
    record = replace(ended("Server.SpotInstanceTermination"), stop_requested_at=at(30))
    resume = f"Launch again with --resume {record.run_id} to continue it, or without to start over."
    assert ending_of(record, Observation(), at(120)).error["do"] == resume
    taken = ending_of(replace(record, stop_requested_at=None), Observation(), at(120))
    assert taken.error["do"] == resume
    late = replace(record, instances=(replace(record.instances[0], terminated_at=at(1800)),))
    assert ending_of(late, Observation(), at(1900)).error["do"] == f"Raise --budget, or train less. {resume}"


def test_a_run_without_an_instance_is_not_continued(make_record):
    record = make_record(stop_requested_at=at(1))
    assert ending_of(record, Observation(), at(2)).error["do"] == "Launch again to start over."
    continuing = replace(record, parent="RUN-before")
    assert f"--resume {record.run_id}" in ending_of(continuing, Observation(), at(2)).error["do"]


def test_of_thousands_of_failed_models_an_error_names_some(make_record):
    failed = tuple({**named(f"S{number:04d}"), "reason": "it diverged"} for number in range(5_000))
    pieces = tuple(piece(one["piece"]) for one in failed)
    record = make_record(pieces=pieces, attempts=launched(), state="running")
    result = NodeResult(state="failed", failed=failed)
    what = "training failed for S0000, S0001, S0002, S0003, S0004, S0005 and 4,994 more"
    assert ending_by_result(record, result).error["what"] == what
    told = timeline(record, {1: Observation(result=replace(result, phases={"end": at(60)}))})
    assert max(len(event.why) for event in told) < 100
    head = NodeSeen(instance_id="i-1", result=replace(result, state="done"))
    assert joined_result(record, [head, head], ()).error["what"] == what
