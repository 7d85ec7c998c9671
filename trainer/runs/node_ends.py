"""The end of an attempt of several nodes, by what became of each: a result, a lost machine, silence. Pure.

Nodes that share pieces live while their head does: what another one loses goes to the rest, and its loss is
only noted. Nodes of one model end with any of them. A lost node has no replacement within its attempt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from trainer.base.instants import iso
from trainer.runs.nodes import is_unfinished
from trainer.runs.observation import ENDED, NodeSeen, Observation
from trainer.runs.outcome import (
    Ending,
    by_limits,
    ending_by_result,
    ending_of,
    gone_without_result,
    is_silent,
    silent_node,
)
from trainer.runs.record import InstanceSeen, RunRecord
from trainer.runs.reports import NODE_STATES

# Without a report while other nodes were heard, by S3's clock: a node reports every three seconds, and an S3
# that fails fails all of them. With a look every five seconds a dead node is known within a minute.
LOST_AFTER = timedelta(seconds=50)
# for the other nodes of one model, after one of them reported a failure: theirs follow, or it was its own
PEERS_FOLLOW = timedelta(seconds=60)


STATES = (*NODE_STATES, "lost", "ended", "")


@dataclass(frozen=True, kw_only=True)
class NodeEnd:
    """The end of one node. `state`: of its result, or lost, or ended (with its run), or '' while it works."""

    node: int
    instance_id: str
    state: str = ""
    error: Mapping[str, Any] | None = None
    models: int = 0  # and values of a script, or trials, that it made
    failed: int = 0  # by its word
    last_report: datetime | None = None

    @property
    def line(self) -> str:
        """Return a line about a node that is lost; '' about any other."""
        if self.state != "lost":
            return ""
        what, why = (str((self.error or {}).get(name) or "") for name in ("what", "why"))
        return f"node {self.node} is lost: {what}{f' ({why})' if why else ''}"

    def to_dict(self) -> dict[str, Any]:
        """Return it as a receipt has it."""
        last = iso(self.last_report) if self.last_report else None
        return {**vars(self), "error": dict(self.error) if self.error else None, "last_report": last}


def ending_of_nodes(record: RunRecord, observed: Observation, now: datetime) -> Ending | None:
    """Return how a run of one node or several ends, or None while it goes on."""
    launch = record.last_launch
    if not observed.nodes or launch is None or launch.outcome != "created":
        return ending_of(record, observed, now)
    endings = node_endings(record, observed, now)
    # Before they know each other none of them works: one that is lost is missed by all.
    together = record.one_model or launch.kill_armed_at is None
    by_nodes = _of_one_model if together else _of_shared_pieces
    return by_nodes(record, observed, endings) or by_limits(record, observed, now)


def node_endings(record: RunRecord, observed: Observation, now: datetime) -> tuple[Ending | None, ...]:
    """Return how each node has ended, by its own report or by what is seen of it; None for one at work."""
    known = {seen.instance_id: seen for seen in record.instances}
    until = min(now, _decided_at(record) or now)
    return tuple(
        _ending_of_node(record, observed, node, known.get(node.instance_id), until) for node in observed.nodes
    )


def node_ends(record: RunRecord, observed: Observation, now: datetime | None = None) -> tuple[NodeEnd, ...]:
    """Return what became of each node of the last attempt that had any; () if it had one. Without `now`,
    as of the last sign of any node.
    """
    record = _as_of_nodes(record, observed.nodes)
    heard = max((node.heard_at for node in observed.nodes if node.heard_at), default=record.created_at)
    endings = node_endings(record, observed, now or heard)
    return tuple(
        NodeEnd(
            node=number,
            instance_id=node.instance_id,
            state=_state(record, node, ending),
            error=ending.error if ending else None,
            models=_made(node),
            failed=_failed(node),
            last_report=node.heartbeat.at if node.heartbeat else None,
        )
        for number, (node, ending) in enumerate(zip(observed.nodes, endings, strict=True))
    )


def _as_of_nodes(record: RunRecord, nodes: Sequence[NodeSeen]) -> RunRecord:
    """Return the record as of the attempt of these nodes: a later one may have launched nothing yet."""
    ids = {node.instance_id for node in nodes}
    numbers = [seen.attempt for seen in record.instances if seen.instance_id in ids]
    return record.as_of(max(numbers)) if numbers else record


def _ending_of_node(
    record: RunRecord,
    observed: Observation,
    node: NodeSeen,
    seen: InstanceSeen | None,
    until: datetime,
) -> Ending | None:
    own = replace(observed, heartbeat=node.heartbeat, result=node.result, boot_log=node.boot_log, nodes=())
    if node.result is not None:
        return ending_by_result(record, node.result)
    if seen is not None and seen.state in (*ENDED, "gone") and not _ended_by_us(record, seen):
        return gone_without_result(record, own, seen)
    launch = record.last_launch
    launched_at = seen.launched_at if seen else launch.intended_at if launch else record.created_at
    behind = _is_behind(node, observed.nodes, until)
    if behind or is_silent(record, own, launched_at=launched_at, now=until):
        return silent_node(own)
    return None


def _is_behind(node: NodeSeen, nodes: Sequence[NodeSeen], until: datetime) -> bool:
    """Return whether an agent gave no sign while another node did; of the last one at work, whether it gave
    none until now.
    """
    if node.heartbeat is None or not node.heartbeat.phase or node.heard_at is None:
        return False
    others = [one for one in nodes if one is not node]
    heard = max((one.heard_at for one in others if one.heard_at), default=node.heard_at)
    alone = all(one.result is not None for one in others)
    return (until if alone else heard) - node.heard_at > LOST_AFTER


def _of_shared_pieces(
    record: RunRecord, observed: Observation, endings: Sequence[Ending | None]
) -> Ending | None:
    """Return how nodes that share pieces end: with their head, once the others have sent what they made."""
    head, others = endings[0], endings[1:]
    if head is None:
        return None
    if head.loss or observed.result is None:
        return _named(head, 0)
    done = head.outcome == "done"
    if None in others and (done or not _others_outlast(observed.nodes, 0)):
        return None  # they upload the last of their pieces
    lost = next((_named(one, number) for number, one in enumerate(endings) if one and one.loss), None)
    if done and lost and is_unfinished(observed.result):
        return lost  # with pieces that nobody took over: the next attempt makes them
    return ending_by_result(record, observed.result)


def _of_one_model(
    record: RunRecord, observed: Observation, endings: Sequence[Ending | None]
) -> Ending | None:
    """Return how nodes of one model end: when the head has it, or when any node is lost or fails.

    The loss of a node fails the others: a failure counts once nobody else can be the cause of it.
    """
    if observed.result is not None and observed.result.state == "done":
        waits = None in endings and not _others_outlast(observed.nodes, 0)
        return None if waits else ending_by_result(record, observed.result)
    lost = (_named(one, number) for number, one in enumerate(endings) if one and one.loss)
    if first := next(lost, None):
        return first
    ended = [number for number, one in enumerate(endings) if one is not None and one.outcome != "done"]
    if not ended:
        return None
    cause = min(ended, key=lambda number: _ended_at(observed.nodes[number]))
    if None in endings and not _others_outlast(observed.nodes, cause):
        return None
    return _named(endings[cause], cause)


def _others_outlast(nodes: Sequence[NodeSeen], number: int) -> bool:
    """Return whether other nodes were heard a while after one had ended."""
    ended = nodes[number].heard_at
    others = [node.heard_at for at, node in enumerate(nodes) if at != number and node.heard_at]
    return ended is not None and any(heard > ended + PEERS_FOLLOW for heard in others)


def _ended_at(node: NodeSeen) -> float:
    ended = node.result.phases.get("end") if node.result else None
    return ended.timestamp() if ended else float("inf")


def _named(ending: Ending | None, number: int) -> Ending:
    """Return an ending whose error names its node."""
    assert ending is not None
    if ending.error is None or ending.outcome in ("expired", "stopped"):
        return ending
    return replace(ending, error={**ending.error, "what": f"node {number}: {ending.error.get('what', '')}"})


def _ended_by_us(record: RunRecord, seen: InstanceSeen) -> bool:
    """Return whether an instance was seen to end after the end of its attempt was decided."""
    decided = _decided_at(record)
    return decided is not None and seen.terminated_at is not None and seen.terminated_at >= decided


def _decided_at(record: RunRecord) -> datetime | None:
    """Return when the end of the last attempt was decided."""
    ended = record.attempt.ended_at if record.attempt else None
    return ended or record.ending_at


def _state(record: RunRecord, node: NodeSeen, ending: Ending | None) -> str:
    if ending is None:
        return "" if record.state == "running" else "ended"
    if node.result is not None and not ending.loss:
        return node.result.state
    return "ended" if ending.outcome in ("expired", "stopped") else "lost"


def _made(node: NodeSeen) -> int:
    if node.result is not None:
        return len(node.result.models) + sum(bool(one["done"]) for one in node.result.scripts)
    if node.left:
        return len(node.left)
    told = node.heartbeat.progress.values() if node.heartbeat else ()
    return sum(one["state"] == "done" for one in told)


def _failed(node: NodeSeen) -> int:
    told = node.heartbeat.progress.values() if node.heartbeat else ()
    return sum(one["state"] == "failed" for one in told)
