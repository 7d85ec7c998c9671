"""The life of a run on the caller's own machine: watched and closed like any other, without an instance.
Pure.

The command that runs it (`mayfly agent --here`) closes it when its agent has ended. Any other command may
close it if its result is in S3, or if it is silent past its deadline or past the grace period of a stop
request. The control function leaves it alone: a silent run may be on a desk without a network, and costs
nothing.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from trainer.base.instants import iso
from trainer.runs.actions import Action, Close, Wait, WriteStop
from trainer.runs.lease import LEASE, SLACK
from trainer.runs.observation import Observation
from trainer.runs.outcome import STOP_GRACE, Ending, correction, ending_by_result, interrupted, stopped
from trainer.runs.record import RunRecord

LATE = timedelta(minutes=15)  # past its deadline: it may still be uploading


def next_of_here(record: RunRecord, observed: Observation, now: datetime) -> tuple[Action, ...]:
    """Return the next actions for an open run without an instance, in order. `(Wait,)` means that nothing is
    due.
    """
    if record.state == "ending":
        return _finish(record, observed, now)
    if ending := _ending(record, observed, now):
        return (ending.stored(record, now),)
    if record.stop_requested_at is not None and not observed.stop_written:
        return (WriteStop(attempt=1, requested_at=record.stop_requested_at),)
    return (Wait(why="waiting for the agent to stop" if record.stop_requested_at else ""),)


def _ending(record: RunRecord, observed: Observation, now: datetime) -> Ending | None:
    if observed.result is not None:
        # possibly from its own terminal, without a stored request
        by_user = observed.result.state == "stopped"
        return stopped(record) if by_user else ending_by_result(record, observed.result)
    if observed.agent_gone:
        why = "it was killed, or its machine went down"
        return interrupted(record, "the agent ended without a result", why)
    if _heard_of(record, observed, now):
        return None
    if record.stop_requested_at is not None and now > record.stop_requested_at + STOP_GRACE:
        return stopped(record)
    if now > record.effective_deadline.at + LATE:
        beat = observed.heartbeat
        why = f"its last heartbeat came at {iso(beat.at)}" if beat else "it never sent a heartbeat"
        return interrupted(record, "the agent fell silent, and its deadline is past", why)
    return None


def _heard_of(record: RunRecord, observed: Observation, now: datetime) -> bool:
    """Return whether its agent is at work, judged by its lease."""
    until = observed.heartbeat.lease_until if observed.heartbeat else record.created_at + LEASE
    return now <= until + SLACK


def _finish(record: RunRecord, observed: Observation, now: datetime) -> tuple[Action, ...]:
    if observed.models is None:
        return (Wait(why="looking at the models"),)
    if ending := correction(record, observed):
        return (ending.stored(record, now),)
    return (Close(record=replace(record, state="closed", closed_at=now)),)
