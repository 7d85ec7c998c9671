"""Progress of a run: what a node last said, and that it has been silent since."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.records import at, described, launched, make_record, seen
from trainer.base.errors import ConnectionFailed
from trainer.control.progress import RunProgress, Step, progress_of, unconfirmed_receipt
from trainer.runs.observation import Observation
from trainer.runs.reports import Heartbeat, NodeResult


def progress(*, seconds: float, state: str = "running", result: NodeResult | None = None) -> RunProgress:
    """Return the progress of a run whose node reported last at 100 s."""
    beat = Heartbeat(
        instance_id="i-1", at=at(100), lease_until=at(190), phase="train", message="waits", rate=5.0
    )
    record = make_record(state=state, attempts=launched(), ending_at=at(120) if state == "ending" else None)
    look = Step(record=record, observed=Observation(heartbeat=beat, result=result), actions=(), moved=False)
    return progress_of(look, at(seconds))


def test_a_killed_node_is_told_long_before_its_lease_ends():
    assert [progress(seconds=now).message for now in (103, 114)] == ["waits", "waits"]
    told = progress(seconds=140)
    assert (told.message, told.is_silent) == ("no sign for 40 s", True)


@pytest.mark.parametrize(
    "over", [{"state": "ending"}, {"result": NodeResult(state="done")}], ids=["ending", "reported its end"]
)
def test_a_node_that_has_ended_owes_no_sign(over):
    assert not progress(seconds=140, **over).is_silent


def test_an_unconfirmed_receipt_counts_its_machine_until_now():
    alive = seen("running", running_seen_at=at(10))
    record = make_record(state="running", attempts=launched(), instances=(alive,)).ended(
        "done", None, at(1805)
    )
    look = Step(record=record, observed=Observation(instances=(described(),)), actions=(), moved=False)
    receipt = unconfirmed_receipt(look, at(3605))
    assert (receipt["dollars"]["spent_low"], receipt["dollars"]["spent_high"]) == (
        pytest.approx(3595 / 3600 * 5.0, abs=1e-6),
        5.0,
    )
    assert receipt["attempts"][0]["spent_high"] == 5.0 and receipt["attempts"][0]["seconds_high"] == 3600.0
    assert (receipt["seconds"]["total"], receipt["closed_at"]) == (3610.0, None)


def test_an_error_after_a_sleep_is_no_warning_at_first():
    ends = make_record(state="ending", outcome="done", attempts=launched(), instances=(seen("running"),))
    failure = ConnectionFailed("cannot describe the instances", why="EndpointConnectionError")
    look = Step(
        record=replace(ends, ending_at=at(120)),
        observed=Observation(),
        actions=(),
        moved=False,
        error=failure,
        failing_since=at(9_000),
    )
    assert [bool(progress_of(look, at(now), failure).warning) for now in (9_001, 9_121)] == [False, True]
