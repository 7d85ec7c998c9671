"""The next attempt of a run that lost its machine: whether there is one, and the steps until it may launch.
Pure.

A machine is lost when AWS or somebody took it, or when it died by itself (`outcome.Ending.loss`). The run
then waits until every instance is proven gone, so that there is never more than one live attempt, and starts
again with what is in S3 (`control.carry`). Two that died at one place count as a fault of the job. Its driver
starts the next attempt; control takes over from a desk that is gone, also one that waited in line for
capacity.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from trainer.base.errors import Interrupted, TrainingFailed
from trainer.base.text import counted
from trainer.runs.actions import Action, DeleteSchedule, Store, Terminate, Wait, kill_schedule
from trainer.runs.attempts import Attempt, Reached
from trainer.runs.launching import attempt_deadline
from trainer.runs.nodes import tokens_of
from trainer.runs.observation import Observation, all_gone
from trainer.runs.outcome import LAUNCHER_SILENT, Ending, ending_by_result, stopped
from trainer.runs.record import InstanceSeen, Outcome, RunRecord
from trainer.runs.reports import Heartbeat, NodeResult

POWER_OFF_GRACE = timedelta(seconds=45)  # for a node that reported, before it is terminated
MOST_LOST = 5  # machines of one run; the job's own failures have nothing to do with it
LEAST_TIME = timedelta(minutes=1)  # of an attempt: a start is billed for as much
FURTHER = 1.02  # steps that count as progress: two reports before one crash differ by seconds


def after(record: RunRecord, observed: Observation, ending: Ending, now: datetime) -> Store:
    """Return the action for a run whose attempt ends: the run ends, or waits for its instances to go."""
    if not ending.loss:
        return ending.stored(record, now)
    if record.stop_requested_at is not None:
        return stopped(record).stored(record, now)
    assert record.attempt is not None
    reached = _reached(observed.heartbeat)
    ended = replace(record.attempt, ended_at=now, error=ending.error, reached=reached)
    died = [item for item in record.lost if (item.error or {}).get("code") == TrainingFailed.exit_code]
    again = ending.loss == "died" and any(_no_further(reached, item.reached) for item in died)
    ended = replace(ended, cause="bug" if again else "lost")
    lost = record.recovering(ended, _signed(record, observed))
    if _why_not(lost, now):
        return _end(lost, now)
    return Store(record=lost, why=f"attempt {ended.number} lost its machine")


def recover(record: RunRecord, observed: Observation, now: datetime) -> tuple[Action, ...]:
    """Return the next step of a run without a machine: see its instances go, then begin the next attempt."""
    attempt = record.attempt
    assert attempt is not None
    # It was slow, not lost. Of several nodes a failure may follow from the loss of another.
    counts = ("done",) if observed.nodes else ("done", "failed")
    if observed.result is not None and observed.result.state in counts:
        return (ending_by_result(record, observed.result).stored(record, now),)
    if record.stop_requested_at is not None:
        return (stopped(record).stored(record, now),)
    if _why_not(record, now):
        return (_end(record, now),)
    why = f"attempt {attempt.number} lost its machine"
    if powers_itself_off(record, observed, attempt.ended_at, now):
        return (Wait(why=f"{why}; it powers itself off"),)
    if observed.alive:
        return (Terminate(instance_ids=tuple(item.instance_id for item in observed.alive), why=why),)
    if not all_gone(record, observed):
        return (Wait(why=f"{why}; waiting to see it terminated"),)
    if taken := taken_over(record, observed, now):
        return (taken,)
    if not observed.may_start:
        return (Wait(why=f"{why}; its driver continues"),)
    kill = kill_schedule(record.run_id, attempt.number)
    deletes = (DeleteSchedule(name=kill),) if kill in observed.schedules else ()
    tokens = tokens_of(record.nodes)
    return (
        *deletes,
        *tokens,
        Store(record=record.with_next_attempt(), why=f"attempt {record.next_number} begins"),
    )


def powers_itself_off(
    record: RunRecord, observed: Observation, since: datetime | None, now: datetime
) -> bool:
    """Return whether a node that reported is still expected to end itself, after the last of its log."""
    if not observed.alive or observed.result is None or since is None:
        return False
    return now < min(since + POWER_OFF_GRACE, record.effective_deadline.at)


def taken_over(record: RunRecord, observed: Observation, now: datetime) -> Store | None:
    """Return the action with which control goes on with a run without a machine whose desk is gone."""
    if record.driver != "desk" or not observed.may_take_over or not record.outlives_its_desk:
        return None
    if now <= record.last_sign + LAUNCHER_SILENT:
        return None
    return Store(record=record.handed_over(now), why="its launcher is gone: control goes on")


def without_a_machine(record: RunRecord, observed: Observation) -> Ending | None:
    """Return the end of a run whose pieces are all finished or failed, by earlier attempts or by the run that
    it continues; None if it needs another machine.
    """
    pieces, start = {piece.piece for piece in record.pieces}, observed.start
    earlier = bool(record.lost or record.parent)
    if not (earlier and pieces and start is not None and pieces <= set(start.over)):
        return None
    return ending_by_result(
        record, NodeResult(state="failed" if start.failed else "done", failed=start.failed)
    )


def lost_machine(attempt: Attempt) -> str:
    """Return a line about an attempt that lost its machine."""
    what, why = (str((attempt.error or {}).get(key, "")) for key in ("what", "why"))
    return f"attempt {attempt.number} lost its machine: {what}{f' ({why})' if why else ''}"


def _why_not(record: RunRecord, now: datetime) -> str:
    """Return why a run that lost its machine has no further attempt; '' if it has one."""
    lost = record.lost
    if lost[-1].cause == "bug":
        reached = lost[-1].reached
        where = f"in phase {reached.phase}" if reached and reached.phase else "before its command began"
        return f"two machines died at one place, {where}: the job ends them, or its machine is too small"
    if len(lost) >= MOST_LOST:
        return f"{counted(len(lost), 'machine')} were lost, which is the most of one run"
    ends = [attempt_deadline(record, rung, now) for rung in record.ladder]
    latest = max(ends, key=lambda deadline: deadline.at)
    if latest.at < now + LEAST_TIME:
        return f"too little {'money' if latest.cause == 'budget' else 'time'} is left for another attempt"
    return ""


def _end(record: RunRecord, now: datetime) -> Store:
    """End a run that lost its machine and has no further attempt."""
    error: Mapping[str, Any] = record.lost[-1].error or {}
    outcome: Outcome = "interrupted" if error.get("code") == Interrupted.exit_code else "failed"
    why = "; ".join(filter(None, (error.get("why", ""), _why_not(record, now))))
    return Ending(outcome=outcome, error={**error, "why": why}).stored(record, now)


def _reached(heartbeat: Heartbeat | None) -> Reached | None:
    if heartbeat is None:
        return None
    steps = sum(
        int(item.get("step", 0)) for item in heartbeat.progress.values() if item["state"] == "training"
    )
    left = max(heartbeat.models_total - heartbeat.models_done, 0)
    return Reached(phase=heartbeat.phase, left=left, steps=steps, retries=heartbeat.retries)


def _no_further(reached: Reached | None, before: Reached | None) -> bool:
    """Return whether an attempt that died came no further than an earlier one; neither may have reported."""
    if reached is None or before is None:
        return reached is before
    same = (reached.phase, reached.left) == (before.phase, before.left)
    return same and reached.steps <= before.steps * FURTHER


def _signed(record: RunRecord, observed: Observation) -> tuple[InstanceSeen, ...]:
    """Return the instances with the last reports of the attempt's nodes, by which its cost is bounded."""
    told = [node.heartbeat for node in observed.nodes] or [observed.heartbeat]
    beats = {beat.instance_id: beat for beat in told if beat is not None}

    def signed(seen: InstanceSeen) -> InstanceSeen:
        if (beat := beats.get(seen.instance_id)) is None:
            return seen
        began = max(min(beat.phases.values(), default=beat.at), seen.launched_at)
        return replace(seen, signed_at=beat.at, running_seen_at=seen.running_seen_at or began)

    return tuple(map(signed, record.instances))
