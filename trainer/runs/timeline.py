"""The timeline of a run: everything that its record, its nodes and AWS say happened, with the reasons. Pure.

`mayfly status RUN --events` prints it, for all attempts. Nothing is stored for it: a record keeps each
decision with its instant, and a node's report its phases.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from trainer.base.instants import iso
from trainer.base.text import counted, some_of
from trainer.runs.attempts import Attempt, Launch
from trainer.runs.launching import pool_name
from trainer.runs.node_ends import node_ends
from trainer.runs.observation import Observation
from trainer.runs.record import InstanceSeen, RunRecord
from trainer.runs.reports import MOST_NAMED, Heartbeat, NodeResult

NODE, AWS = "node", "aws"
DRIVER = "driver"  # in place of its name: it may have changed
Reports = Mapping[int, Observation]  # attempt -> what its nodes reported


@dataclass(frozen=True, kw_only=True)
class RunEvent:
    """One thing that happened. `by`: desk or control, for a decision of the run's driver; aws, for a state of
    an instance; node, or node 1 of several, by the node's own clock.
    """

    at: datetime
    attempt: int  # 0: of the run
    by: str
    what: str
    why: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return it as `--json` prints it."""
        return {**vars(self), "at": iso(self.at)}


def timeline(record: RunRecord, reports: Reports) -> list[RunEvent]:
    """Return every event of a run, oldest first; those of one instant as they are decided."""
    events = [
        *_begun(record),
        *(event for attempt in record.attempts for event in _continues(record, attempt, reports)),
        *(event for attempt in record.attempts for event in _of_attempt(record, attempt)),
        *(event for seen in record.instances for event in _of_instance(record, seen)),
        *(event for number, seen in reports.items() for event in _reported(number, seen)),
        *(event for number, seen in reports.items() for event in _lost_nodes(record.as_of(number), seen)),
        *_ended(record),
    ]
    named = (replace(one, by=_driver(record, one.at)) if one.by == DRIVER else one for one in events)
    return sorted(named, key=lambda event: event.at)


def _driver(record: RunRecord, at: datetime) -> str:
    """Return who drove a run at an instant."""
    return "desk" if record.handed_over_at is not None and at < record.handed_over_at else record.driver


def _begun(record: RunRecord) -> Iterator[RunEvent]:
    rungs = f"{counted(len(record.ladder), 'pool')} to ask" if record.ladder else f"on {record.host}"
    why = f"continues {record.parent}; {rungs}" if record.parent else rungs
    yield RunEvent(at=record.created_at, attempt=0, by=DRIVER, what="registered", why=why)
    if record.handed_over_at:
        why = "its desk left it, or was gone"
        yield RunEvent(at=record.handed_over_at, attempt=0, by=DRIVER, what="goes on with it", why=why)


def _continues(record: RunRecord, attempt: Attempt, reports: Reports) -> Iterator[RunEvent]:
    """Yield what an attempt that continues earlier work begins with, by its start file."""
    start = reports.get(attempt.number, Observation()).start
    if start is None or not attempt.launches or not (attempt.number > 1 or record.parent):
        return
    pieces, files = counted(len(start.finished), "finished piece"), counted(len(start.files), "file")
    what = f"begins with {pieces} and {files} of checkpoints"
    why = "" if start.finished or start.files else "S3 has nothing of earlier work that verifies"
    yield RunEvent(at=attempt.launches[0].intended_at, attempt=attempt.number, by=DRIVER, what=what, why=why)


def _of_attempt(record: RunRecord, attempt: Attempt) -> Iterator[RunEvent]:
    """Yield an attempt's launches with their answers, its wait for capacity, and the loss of its machine."""
    for launch in attempt.launches:
        yield from _of_launch(record, attempt.number, launch)
    if queue := attempt.queue:
        why = f"every pool was full; at most until {iso(queue.until.replace(microsecond=0))}"
        yield RunEvent(at=queue.since, attempt=attempt.number, by=DRIVER, what="waits for capacity", why=why)
        tries = f"try {queue.walks} of the whole ladder"
        what = "next try" if attempt.waits else "last try of the ladder began"
        yield RunEvent(at=queue.next_at, attempt=attempt.number, by=DRIVER, what=what, why=tries)
    if attempt.ended_at:
        what = "ended by the job's fault" if attempt.cause == "bug" else "lost its machine"
        yield RunEvent(
            at=attempt.ended_at,
            attempt=attempt.number,
            by=DRIVER,
            what=what,
            why=_reason(attempt.error),
        )


def _of_launch(record: RunRecord, attempt: int, launch: Launch) -> Iterator[RunEvent]:
    def event(at: datetime, by: str, what: str, why: str = "") -> RunEvent:
        return RunEvent(at=at, attempt=attempt, by=by, what=what, why=why)

    pool = pool_name(record.ladder[launch.rung])
    deadline = f"deadline {iso(launch.deadline)}, by {launch.deadline_cause}"
    yield event(launch.intended_at, DRIVER, f"chose {pool}", deadline)
    if launch.called_at:
        again = f"call {launch.calls} under one token" if launch.calls > 1 else ""
        yield event(launch.called_at, DRIVER, f"called CreateFleet for {pool}", again)
        said = f"{launch.error_code}: {launch.error_message}" if launch.error_message else launch.error_code
        answers = {
            "created": ("created " + ", ".join(launch.instance_ids), ""),
            "refused": (f"refused {pool}", said),
            "intended": ("no clear answer yet", ""),
            "abandoned": ("gave no clear answer", "the run ended before"),
        }
        yield event(launch.called_at, AWS, *answers[launch.outcome])
    if launch.kill_armed_at:
        yield event(launch.kill_armed_at, DRIVER, "armed the second schedule", deadline)


def _of_instance(record: RunRecord, seen: InstanceSeen) -> Iterator[RunEvent]:
    def event(at: datetime, what: str, why: str = "") -> RunEvent:
        return RunEvent(at=at, attempt=seen.attempt, by=AWS, what=f"{seen.instance_id} {what}", why=why)

    market = seen.market.replace("_", "-")
    launched_at = _launched_at(record, seen)
    yield event(launched_at, "launched", f"{seen.instance_type} {market} in {seen.availability_zone}")
    if seen.running_seen_at:
        yield event(seen.running_seen_at, "seen running")
    if seen.terminated_at:
        yield event(seen.terminated_at, f"ended, {seen.proof or 'not proven yet'}", seen.reason)


def _launched_at(record: RunRecord, seen: InstanceSeen) -> datetime:
    """Return when an instance was launched. EC2 tells whole seconds: within the second of its CreateFleet
    call, that call's instant.
    """
    calls = (
        launch.called_at
        for attempt in record.attempts
        for launch in attempt.launches
        if launch.called_at and seen.instance_id in launch.instance_ids
    )
    called_at = next(calls, seen.launched_at)
    return called_at if called_at.replace(microsecond=0) == seen.launched_at else seen.launched_at


def _reported(attempt: int, seen: Observation) -> Iterator[RunEvent]:
    """Yield what an attempt's node reported, or each of several."""
    if not seen.nodes:
        yield from _of_node(attempt, NODE, seen.heartbeat, seen.result)
    for number, node in enumerate(seen.nodes):
        yield from _of_node(attempt, f"{NODE} {number}", node.heartbeat, node.result)


def _lost_nodes(record: RunRecord, seen: Observation) -> Iterator[RunEvent]:
    """Yield the loss of each of several nodes, when its instance ended or it was heard last."""
    assert record.attempt is not None
    ended = {one.instance_id: one.terminated_at for one in record.instances}
    for end in node_ends(record, seen):
        at = ended.get(end.instance_id) or end.last_report
        if end.line and at is not None:
            what = f"node {end.node} is lost"
            yield RunEvent(at=at, attempt=record.attempt.number, by=DRIVER, what=what, why=_reason(end.error))


def _of_node(attempt: int, by: str, beat: Heartbeat | None, result: NodeResult | None) -> Iterator[RunEvent]:
    """Yield the phases of a node, its last sign of life, and its result."""
    phases = dict(beat.phases if beat else {}) | dict(result.phases if result else {})
    for name, at in phases.items():
        done = f"{beat.models_done} of {beat.models_total} done" if beat and name == "end" else ""
        yield RunEvent(at=at, attempt=attempt, by=by, what=f"phase {name}", why=done)
    if beat and result is None:
        yield RunEvent(at=beat.at, attempt=attempt, by=by, what="last heartbeat", why=beat.message)
    if result is not None:
        ended_at = max(phases.values(), default=beat.at if beat else None)
        failed = some_of([str(item["piece"]) for item in result.failed], MOST_NAMED)
        why = _reason(result.error) or (f"failed: {failed}" if failed else "")
        if ended_at is not None:
            yield RunEvent(at=ended_at, attempt=attempt, by=by, what=f"reported {result.state}", why=why)


def _ended(record: RunRecord) -> Iterator[RunEvent]:
    if record.stop_requested_at:
        yield RunEvent(at=record.stop_requested_at, attempt=0, by="desk", what="stop requested")
    if record.ending_at:
        what = f"ends: {record.outcome}"
        yield RunEvent(at=record.ending_at, attempt=0, by=DRIVER, what=what, why=_reason(record.error))
    if record.closed_at:
        yield RunEvent(at=record.closed_at, attempt=0, by=DRIVER, what="closed", why="its receipt is written")


def _reason(error: Mapping[str, Any] | None) -> str:
    if not error:
        return ""
    why = f" ({error['why']})" if error.get("why") else ""
    return f"{error.get('what', '')}{why}"


def as_rows(events: Iterable[RunEvent]) -> list[dict[str, str]]:
    """Return events as rows of a table."""
    return [
        {
            "at": f"{event.at:%Y-%m-%d %H:%M:%S}",
            "attempt": str(event.attempt or ""),
            "by": event.by,
            "event": event.what,
            "reason": event.why,
        }
        for event in events
    ]
