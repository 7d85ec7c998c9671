"""The times of a run as its report draws them: the phases of each attempt and node, and its events. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from datetime import datetime
from typing import Any

from trainer.base.instants import iso
from trainer.runs.attempts import Attempt
from trainer.runs.node_ends import node_ends
from trainer.runs.observation import Observation
from trainer.runs.record import RunRecord
from trainer.runs.reports import Heartbeat, NodeResult
from trainer.runs.timeline import Reports, timeline

MOST_LANES, MOST_EVENTS = 64, 400
# of a lane, with the phase that begins there by a node's report
_OF_NODES = {"stage": "stage", "train": "train", "upload": "upload", "end": "terminate"}


def lanes(record: RunRecord, reports: Reports) -> dict[str, Any]:
    """Return `lanes`, one for each attempt or each of its nodes: its phases (name, begin and end in seconds
    since 1970) and how it ended. Beyond MOST_LANES the newest are kept; `lanes_left_out` counts the others.
    """
    made = [lane for attempt in record.attempts for lane in _of_attempt(record, attempt, reports)]
    return {"lanes": made[-MOST_LANES:], "lanes_left_out": max(0, len(made) - MOST_LANES)}


def events(record: RunRecord, reports: Reports) -> dict[str, Any]:
    """Return what happened, oldest first, as `status RUN --events` prints it; of too many the last."""
    told = timeline(record, reports)
    rows = [[iso(one.at), one.attempt, one.by, one.what, one.why] for one in told[-MOST_EVENTS:]]
    return {"total": len(told), "rows": rows}


def _of_attempt(record: RunRecord, attempt: Attempt, reports: Reports) -> Iterator[dict[str, Any]]:
    seen = reports.get(attempt.number, Observation())
    title = f"attempt {attempt.number}"
    if not seen.nodes:
        ids = [one.instance_id for one in record.instances if one.attempt == attempt.number]
        yield _lane(record, attempt, title, ids, seen.heartbeat, seen.result)
    ends = node_ends(record.as_of(attempt.number), seen)
    for end, node in zip(ends, seen.nodes, strict=True):
        name = f"{title}, node {end.node}"
        lane = _lane(record, attempt, name, [node.instance_id], node.heartbeat, node.result)
        own = {"lost": True, "why": str((end.error or {}).get("what") or "")} if end.line else {}
        yield {**lane, **own}


def _lane(
    record: RunRecord,
    attempt: Attempt,
    title: str,
    ids: Collection[str],
    beat: Heartbeat | None,
    result: NodeResult | None,
) -> dict[str, Any]:
    """Return the lane of instances with these ids."""
    is_last = attempt is record.attempts[-1]
    ends = [seen.terminated_at for seen in record.instances if seen.instance_id in ids]
    known = [end for end in ends if end is not None]
    closed = record.closed_at if is_last else None
    end = max(known, default=None) or attempt.ended_at or closed or record.created_at
    phases = _phases(beat, result)
    begins: list[tuple[str, datetime | None]] = [
        ("preflight", record.preflight_at if attempt.number == 1 else None),
        ("capacity", record.created_at if attempt.number == 1 else _launched_at(attempt)),
        ("boot", attempt.created_at),
        *((name, phases.get(phase)) for phase, name in _OF_NODES.items() if phase != "end"),
        ("terminate", phases.get("end") or (record.ending_at if is_last and attempt.created_at else None)),
    ]
    error = attempt.error or (record.error if is_last else None) or {}
    return {
        "title": title,
        "segments": _segments([(name, at) for name, at in begins if at is not None], end),
        "lost": bool(attempt.ended_at),
        "why": str(error.get("what") or ""),
    }


def _phases(beat: Heartbeat | None, result: NodeResult | None) -> Mapping[str, datetime]:
    return {**(beat.phases if beat else {}), **(result.phases if result else {})}


def _launched_at(attempt: Attempt) -> datetime | None:
    return attempt.launches[0].intended_at if attempt.launches else None


def _segments(begins: list[tuple[str, datetime]], end: datetime) -> list[list[Any]]:
    """Return name, begin and end of each phase, which lasts until the next one; a node's clock may differ."""
    made: list[list[Any]] = []
    since = begins[0][1] if begins else end
    for name, at in begins:
        at = min(max(at, since), max(end, since))
        if made:
            made[-1][2] = round(at.timestamp(), 3)
        made.append([name, round(at.timestamp(), 3), round(max(end, at).timestamp(), 3)])
        since = at
    return [one for one in made if one[2] > one[1]]
