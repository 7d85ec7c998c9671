"""Read what the nodes of an attempt report in S3: lease and progress, result, list of output files.

Each is hostile until a strict parser has read it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

from trainer.aws.access import begin_calls
from trainer.aws.objects import Objects, Stored, given
from trainer.base.errors import ConnectionFailed, TrainingFailed
from trainer.base.strict_json import Unsound, read_object
from trainer.job.model_names import MODEL_SUFFIX
from trainer.runs.keys import NodeKeys
from trainer.runs.lease import MOST_LEASE_BYTES, read_lease
from trainer.runs.nodes import joined_heartbeat, joined_result
from trainer.runs.observation import NodeSeen, Observation
from trainer.runs.record import RunRecord
from trainer.runs.reports import (
    MOST_OUTPUTS_BYTES,
    MOST_PROGRESS_BYTES,
    MOST_RESULT_BYTES,
    Heartbeat,
    NodeResult,
    heartbeat,
    read_outputs,
    read_result,
    read_scripts,
)
from trainer.runs.start_file import stored_start
from trainer.runs.store import PART_BYTES, start_key
from trainer.store.listing import models_in

T = TypeVar("T")
R = TypeVar("R")
ASKED_AT_ONCE = 10  # as many connections as boto3 keeps open
S3_SECONDS = 120.0  # for asking about the models or files of one run; 2,000 take 16 s at 80 ms each
EACH_SECONDS = 0.02  # of very many, which may take longer: 20,000 models, 50,000 files


def read_reports(objects: Objects, record: RunRecord, now: datetime) -> Observation:
    """Return the last heartbeat and the result of the record's last attempt; of several nodes each one's, and
    all of them as one.
    """
    if len(record.nodes) > 1:
        return joined(record, at_once(record.nodes, lambda keys: _node(objects, keys, record, now), "nodes"))
    return Observation(heartbeat=last_report(objects, record, now), result=node_result(objects, record))


def node_result(objects: Objects, record: RunRecord) -> NodeResult | None:
    """Return the result of the record's last attempt, which has one node."""
    return next(filter(None, (_result(objects, keys, record) for keys in record.nodes)), None)


def last_report(objects: Objects, record: RunRecord, now: datetime) -> Heartbeat | None:
    """Return the last heartbeat of the record's last attempt."""
    beats = filter(None, (_heartbeat(objects, keys, now)[0] for keys in record.nodes))
    return max(beats, key=lambda beat: beat.at, default=None)


def joined(record: RunRecord, nodes: Sequence[NodeSeen], finished: Collection[str] = ()) -> Observation:
    """Return the reports of several nodes, and all of them as one. `finished`: pieces of earlier attempts."""
    whole = joined_result(record, nodes, finished)
    return Observation(nodes=tuple(nodes), heartbeat=joined_heartbeat(nodes), result=whole)


def with_what_they_left(objects: Objects, record: RunRecord, reports: Observation) -> Observation:
    """Return the reports of several nodes with the pieces that those without a result have made, by what S3
    has, and those of earlier attempts, once the head has a result: then they are missed, or were made.
    """
    if not reports.nodes or reports.nodes[0].result is None:
        return reports
    known = {keys.instance_id: keys for keys in record.nodes}

    def looked(node: NodeSeen) -> NodeSeen:
        if node.result is not None:
            return node
        return replace(node, left=tuple(sorted(_made(objects, record, known[node.instance_id]))))

    assert record.attempt is not None
    number = record.attempt.number
    start = stored_start(objects.get(key=start_key(record.run_id, number)), record.run_id, number)
    return joined(record, at_once(reports.nodes, looked, "nodes"), start.pieces if start else ())


def listed(
    objects: Objects, keys: NodeKeys
) -> tuple[tuple[dict[str, Any], ...], tuple[dict[str, Any], ...]] | None:
    """Return the files that a node lists, and the ended pieces; empty without a list, None for one that can't
    be read.
    """
    body = body_of(objects, keys.output_index, MOST_OUTPUTS_BYTES + 1)
    if body is None:
        return (), ()
    try:
        fields = read_object(body, most_bytes=MOST_OUTPUTS_BYTES, name="the list")
        return read_outputs(fields, prefix=keys.outputs), read_scripts(fields)
    except Unsound:
        return None


def body_of(objects: Objects, key: str, first_bytes: int) -> bytes | None:
    """Return the first bytes of a node's object; b"" if S3 refuses it."""
    stored = given(lambda: objects.get(key=key, first_bytes=first_bytes))
    return None if stored is None else stored.body


def part_of(objects: Objects, part: Stored) -> bytes:
    """Return the bytes of a listed part of a node's log or events; b"" if S3 refuses it."""
    return (body_of(objects, part.key, PART_BYTES) or b"") if part.size else b""


def at_once(items: Sequence[T], look: Callable[[T], R], what: str, *, seconds: float = 0.0) -> list[R]:
    """Ask S3 about each item, several at a time. Raises ConnectionFailed if it takes longer than `seconds`,
    or S3_SECONDS, and EACH_SECONDS of each; the next look starts over.
    """
    most, began = max(seconds or S3_SECONDS, EACH_SECONDS * len(items)), time.monotonic()
    futures = begin_calls([partial(look, item) for item in items], most=ASKED_AT_ONCE)
    try:
        return [one.result(timeout=max(0.0, began + most - time.monotonic())) for one in futures]
    except TimeoutError as error:
        late = f"S3 did not describe the {len(items)} {what} within {most:.0f} s"
        raise ConnectionFailed(late, do="Try again later.") from error
    finally:
        for one in futures:
            one.cancel()


def _node(objects: Objects, keys: NodeKeys, record: RunRecord, now: datetime) -> NodeSeen:
    beat, heard_at = _heartbeat(objects, keys, now)
    result = _result(objects, keys, record)
    return NodeSeen(instance_id=keys.instance_id, heartbeat=beat, heard_at=heard_at, result=result)


def _made(objects: Objects, record: RunRecord, keys: NodeKeys) -> set[str]:
    """Return the pieces that a node made: models in its folder, and values or trials in its list."""
    pieces = {f"{piece.model}{MODEL_SUFFIX}": piece.piece for piece in record.pieces}
    made = {pieces[item.key.removeprefix(keys.models)] for item in models_in(objects, record, keys)}
    if record.lists_ends:
        _, scripts = listed(objects, keys) or ((), ())
        made |= {str(one["piece"]) for one in scripts if one["done"]} & set(pieces.values())
    return made


def _heartbeat(objects: Objects, keys: NodeKeys, now: datetime) -> tuple[Heartbeat | None, datetime | None]:
    """Return a node's last report, and when S3 took it. A malformed lease or progress counts as missing: then
    the boot allowance decides.
    """
    stored: Stored | None = given(lambda: objects.get(key=keys.lease, first_bytes=MOST_LEASE_BYTES + 1))
    if stored is None:
        return None, None
    try:
        lease = read_lease(stored.body, now)
    except Unsound:
        return None, None
    try:
        beat = heartbeat(lease, body_of(objects, keys.progress, MOST_PROGRESS_BYTES + 1) or b"")
    except Unsound as error:
        beat = replace(heartbeat(lease), message=f"the node's progress can't be read: {error}")
    return beat, stored.modified_at


def _result(objects: Objects, keys: NodeKeys, record: RunRecord) -> NodeResult | None:
    body = body_of(objects, keys.result, MOST_RESULT_BYTES + 1)
    if body is None:
        return None
    try:
        names = [piece.model for piece in record.pieces]
        return read_result(body, models_prefix=keys.models, names=names)
    except Unsound as error:
        unread = TrainingFailed(
            f"the node's result {keys.result} can't be read", why=str(error), do="Launch again."
        )
        return NodeResult(state="failed", exit_code=unread.exit_code, error=unread.as_dict())
