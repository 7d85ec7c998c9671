"""Write the start file of an attempt: what earlier attempts finished, and copies of their newest checkpoints.

Runs as the caller, desk or control, between two attempts, when every instance of the earlier one is proven
gone. Nothing that a node wrote is trusted by name: models, files and objects count in the version that was
looked at, with the hash that S3 has for it, and only the caller may write where the next attempt reads. So no
machine reads another one's keys. Idempotent: objects are copied once, and the first start file counts. The
first attempt of a run that continues another one (`control.resume`) begins with what that run left.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from trainer.aws.objects import Conflict, Objects, SpoiledObject, given
from trainer.base.strict_json import Unsound
from trainer.base.symbols import folders_of
from trainer.control.observe import left_behind
from trainer.control.tokens import give_token
from trainer.job.model_names import MODEL_SUFFIX
from trainer.runs.keys import NodeKeys
from trainer.runs.nodes import owner_of
from trainer.runs.observation import Observation
from trainer.runs.receipt import models_of, outputs_of, scripts_of
from trainer.runs.record import RunRecord
from trainer.runs.repeated import reached_steps, steps_twice
from trainer.runs.reports import (
    CHECKPOINT_COUNTS,
    MOST_FILES,
    MOST_PROGRESS_BYTES,
    MOST_SENT,
    UNFINISHED,
    sent_by,
)
from trainer.runs.snapshots import (
    MOST_SNAPSHOT_BYTES,
    Snapshot,
    SnapshotFile,
    SnapshotObject,
    read_snapshot,
    snapshot_numbers,
)
from trainer.runs.start_file import CarriedObject, StartFile, start_to_json, stored_start
from trainer.runs.store import RecordMissing, carried_key, read_record, start_key

log = logging.getLogger("trainer.control")
COPIED_AT_ONCE = 8
MOST_SNAPSHOTS = 5  # that are tried, the newest first
Candidate = tuple[tuple[CarriedObject, ...], tuple[SnapshotFile, ...]]


def carry(objects: Objects, record: RunRecord, attempt: int) -> None:
    """Write an attempt's start file, unless it exists."""
    if objects.head(key=start_key(record.run_id, attempt)) is not None:
        return
    before = record.as_of(attempt - 1)
    start = StartFile(run_id=record.run_id, attempt=attempt)
    if before.attempts:
        start = _going_on(objects, before, start)
    elif record.parent:
        start = _continuing(objects, record, start)
    with suppress(Conflict):  # another caller was first
        objects.put(key=start_key(record.run_id, attempt), body=start_to_json(start), create=True)


def write_ids(
    objects: Objects,
    run_id: str,
    attempt: int,
    instance_ids: tuple[str, ...],
    addresses: tuple[str, ...] = (),
    nodes: Sequence[NodeKeys] = (),
) -> None:
    """Add the ids of an attempt's instances to its start file, and the addresses of several, to whose `nodes`
    their token is given before. Raises Conflict after a lost race.

    A caller that slept since it looked gives no token: the nodes that it would name have been named, and may
    be gone.
    """
    key = start_key(run_id, attempt)
    stored = objects.get(key=key)
    start = stored_start(stored, run_id, attempt)
    if stored is None or start is None:
        do = "Look again in a few minutes; the machine ends at its boot allowance if it stays away."
        raise RecordMissing(f"{key} is not found now", why="S3 does not return what was written", do=do)
    if set(instance_ids) - set(start.instances) or addresses != start.addresses:
        if addresses:
            give_token(objects, nodes)
        named = replace(start, instances=instance_ids, addresses=addresses)
        objects.put(key=key, body=start_to_json(named), if_match=stored.etag)


def _going_on(objects: Objects, before: RunRecord, start: StartFile) -> StartFile:
    """Return a start file with what the attempts of a record finished, and their newest checkpoints."""
    left = left_behind(objects, before)
    finished = (*models_of(before, left), *(entry for entry in scripts_of(left) if entry["done"]))
    start = replace(
        start,
        finished=finished,
        failed=_failed(before, left, but={str(entry["piece"]) for entry in finished}),
        outputs=tuple(outputs_of(left)),
        sent=_sent(objects, before, left),
        reached=reached_steps(left.start, left.heartbeat, pieces=[one.piece for one in before.pieces]),
        steps_twice=steps_twice(left.start, left.heartbeat),
    )
    return _with_checkpoints(objects, before, left, start)


def _failed(before: RunRecord, left: Observation, *, but: Collection[str]) -> tuple[Mapping[str, Any], ...]:
    """Return the pieces that failed in the attempts of a record, by the words of their nodes: machines that
    are lost give none a further try.
    """
    results = [left.result, *(node.result for node in left.nodes)]
    entries = [entry for result in results if result for entry in result.failed]
    # of several nodes the word of the one that tried
    entries.sort(key=lambda entry: entry["reason"] not in UNFINISHED)
    reasons = {str(entry["piece"]): entry["reason"] for entry in entries}
    told = left.heartbeat.progress if left.heartbeat else {}
    earlier = {str(entry["piece"]): entry for entry in left.start.failed} if left.start else {}
    unknown = "it failed on a machine that was lost later: its log has the reason"
    here = {
        piece.piece: {**piece.identity, "reason": reasons.get(piece.piece, unknown)}
        for piece in before.pieces
        if told.get(piece.piece, {}).get("state") == "failed"
    }
    return tuple(entry for piece, entry in {**here, **earlier}.items() if piece not in but)


def _sent(objects: Objects, before: RunRecord, left: Observation) -> dict[str, int]:
    """Return how much the attempts of a record sent of CHECKPOINTS, by the words of their nodes."""
    results = {node.instance_id: node.result for node in left.nodes}
    if left.result is not None and not left.nodes:
        results = {keys.instance_id: left.result for keys in before.nodes[:1]}
    told = [left.start.sent if left.start else {}]
    for keys in before.nodes:
        result = results.get(keys.instance_id)
        told.append(result.checkpoints if result and result.checkpoints else _sent_by(objects, keys))
    counts = {name: min(sum(one.get(name, 0) for one in told), MOST_SENT) for name in CHECKPOINT_COUNTS}
    return counts if any(counts.values()) else {}


def _sent_by(objects: Objects, keys: NodeKeys) -> dict[str, Any]:
    """Return how much a node sent of CHECKPOINTS, by its progress."""
    stored = given(partial(objects.get, key=keys.progress, first_bytes=MOST_PROGRESS_BYTES + 1))
    return sent_by(stored.body if stored else b"")


def _continuing(objects: Objects, record: RunRecord, start: StartFile) -> StartFile:
    """Return a start file with what counts of the closed run that a record continues."""
    parent, _ = read_record(objects, record.parent, seen=True)
    before = last_begun(objects, parent)
    left = left_behind(objects, before)
    if record.parent_counts == "all":
        pieces = {piece.piece for piece in record.pieces}
        done = tuple(entry for entry in finished_of(objects, before, left) if entry["piece"] in pieces)
        start = replace(start, finished=done, outputs=tuple(_there(objects, outputs_of(left))))
    return _with_checkpoints(objects, before, left, start)


def last_begun(objects: Objects, parent: RunRecord) -> RunRecord:
    """Return a closed run as of its last attempt that has a start file: one without left nothing, and does
    not name what earlier ones left.
    """
    begun = [
        item.number
        for item in parent.attempts
        if objects.head(key=start_key(parent.run_id, item.number)) is not None
    ]
    return parent.as_of(max(begun, default=0))


def finished_of(objects: Objects, before: RunRecord, left: Observation) -> list[Mapping[str, Any]]:
    """Return the finished models that S3 still holds, and the finished pieces of a script if it still holds
    every file that they left: what a run stored ends after the stack's days.
    """
    models, outputs = _there(objects, models_of(before, left)), outputs_of(left)
    scripts = [entry for entry in scripts_of(left) if entry["done"]]
    whole = bool(scripts) and len(_there(objects, outputs)) == len(outputs)
    return [*models, *(scripts if whole else ())]


def has_checkpoints(objects: Objects, before: RunRecord, earlier: StartFile | None) -> bool:
    """Return whether S3 still holds a snapshot with files that a run would begin with."""
    return any(
        files and all(_verified(objects, source) for source in sources)
        for sources, files in _candidates(objects, before, Observation(start=earlier))
    )


def _there(objects: Objects, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the models or files that S3 still holds as listed."""

    def is_there(entry: Mapping[str, Any]) -> bool:
        stored = given(lambda: objects.head(key=entry["key"], version_id=entry["version_id"]))
        return stored is not None and stored.sha256 == entry["sha256"]

    with ThreadPoolExecutor(COPIED_AT_ONCE) as pool:
        return [entry for entry, there in zip(entries, pool.map(is_there, entries), strict=True) if there]


def _with_checkpoints(objects: Objects, before: RunRecord, left: Observation, start: StartFile) -> StartFile:
    """Return a start file with copies of the objects of the newest snapshot that verifies, else of those that
    the earlier attempt began with, and the files in them. Finished models go on from nothing.
    """
    made = {str(model["key"]).rpartition("/")[2].removesuffix(MODEL_SUFFIX) for model in start.models}
    for sources, files in _candidates(objects, before, left):
        needed = tuple(file for file in files if _folder(file) not in made)
        held = {file.object for file in needed}
        copied = _copied(objects, [source for source in sources if source.sha256 in held], start)
        if copied is not None:
            return replace(start, objects=copied, files=needed)
        log.warning("a snapshot of %s does not verify; an older one is tried", before.run_id)
    return start


def _candidates(objects: Objects, before: RunRecord, left: Observation) -> list[Candidate]:
    """Return the snapshots to begin with: the last attempt's, the newest first, then its own start. Those of
    several nodes are joined to one.
    """
    began = [(left.start.objects, left.start.files)] if left.start is not None and left.start.files else []
    if len(before.nodes) > 1:
        return [*_joined(objects, before, left, began), *began]
    return [*(one for keys in before.nodes for one in _snapshots(objects, keys)), *began]


def _joined(
    objects: Objects, before: RunRecord, left: Observation, began: Sequence[Candidate]
) -> Iterator[Candidate]:
    """Yield one candidate made of each node's newest snapshot that verifies, if there is any.

    - A piece: the files of the node that came furthest with it.
    - One model of all nodes: the parts of all of them.
    - What no node has: what the attempt began with.

    A folder that a start file can't hold beside the others is left out.
    """
    newest = [next(_whole(objects, _snapshots(objects, keys)), ((), ())) for keys in before.nodes]
    candidates = [*newest, *_whole(objects, iter(began))]
    pieces = {name: piece.piece for piece in before.pieces for name in (piece.model, piece.piece)}
    files: dict[str, SnapshotFile] = {}
    for folder in sorted({_folder(file) for _, held in candidates for file in held}):
        owner = owner_of(left.nodes, pieces.get(folder, folder))
        ordered = [newest[owner], *newest]
        held = [{file.path: file for file in one if _folder(file) == folder} for _, one in ordered]
        found = max(held, key=_step) if before.leaves == "models" else next(filter(None, held), {})
        for other in held if before.one_model else ():
            found = other | found
        began_with = (one for _, held in candidates[len(newest) :] for one in held)
        found = found or {file.path: file for file in began_with if _folder(file) == folder}
        if len(files) + len(found) > MOST_FILES or folders_of(found) & found.keys():
            log.warning("%s of %s is left out: a start file can't hold it as well", folder, before.run_id)
            continue
        files |= found
    sources = {source.sha256: source for one, _ in reversed(candidates) for source in one}
    if files:
        needed = dict.fromkeys(file.object for file in files.values())
        yield tuple(sources[name] for name in needed), tuple(files.values())


def _whole(objects: Objects, candidates: Iterator[Candidate]) -> Iterator[Candidate]:
    """Yield those of which S3 has every object as listed."""
    for sources, files in candidates:
        with ThreadPoolExecutor(COPIED_AT_ONCE) as pool:
            if all(pool.map(partial(_verified, objects), sources)):
                yield sources, files


def _step(files: Mapping[str, SnapshotFile]) -> int:
    """Return the newest step of a model's checkpoints, `<model>/<step>/...`; 0 for files without any, -1 for
    none.
    """
    steps = [path.split("/")[1] for path in files if path.count("/") > 1]
    return max((int(step) for step in steps if step.isdecimal()), default=0 if files else -1)


def _folder(file: SnapshotFile) -> str:
    """Return the first part of a file's path: a model's name, or a value's."""
    return file.path.partition("/")[0]


def _snapshots(objects: Objects, keys: NodeKeys) -> Iterator[Candidate]:
    """Yield objects and files of a node's snapshots, the newest first."""
    prefix = keys.checkpoints
    names = [item.key.removeprefix(prefix) for item in objects.list(prefix=prefix)]
    for number in snapshot_numbers(names)[:MOST_SNAPSHOTS]:
        snapshot = _snapshot(objects, keys, number)
        if snapshot is not None:
            yield tuple(_source(keys, item) for item in snapshot.objects), snapshot.files


def _source(keys: NodeKeys, item: SnapshotObject) -> CarriedObject:
    key = keys.snapshot_data(item.slot)
    return CarriedObject(key=key, sha256=item.sha256, size=item.size, version_id=item.version_id)


def _snapshot(objects: Objects, keys: NodeKeys, number: int) -> Snapshot | None:
    key = keys.snapshot(number)
    stored = given(lambda: objects.get(key=key, first_bytes=MOST_SNAPSHOT_BYTES + 1))
    try:
        body = stored.body if stored else b""
        return read_snapshot(body, run_id=keys.run_id, attempt=keys.attempt, number=number)
    except Unsound as error:
        log.warning("%s is not used: %s", key, error)
        return None


def _copied(
    objects: Objects, sources: Iterable[CarriedObject], start: StartFile
) -> tuple[CarriedObject, ...] | None:
    """Copy objects into an attempt's own folder, several at a time; None if one is not as its list says."""
    with ThreadPoolExecutor(COPIED_AT_ONCE) as pool:
        copies = tuple(pool.map(partial(_copy, objects, start), sources))
    return None if None in copies else tuple(copy for copy in copies if copy is not None)


def _verified(objects: Objects, source: CarriedObject) -> bool:
    there = given(lambda: objects.head(key=source.key, version_id=source.version_id))
    return there is not None and (there.sha256, there.size) == (source.sha256, source.size)


def _copy(objects: Objects, start: StartFile, source: CarriedObject) -> CarriedObject | None:
    key = carried_key(start.run_id, start.attempt, source.sha256)
    if not _verified(objects, source):
        return None
    with suppress(Conflict, SpoiledObject):  # copied by an earlier call; archived by its node
        objects.copy(
            source=source.key,
            version_id=source.version_id,
            key=key,
            create=True,
            sha256=source.sha256,
        )
    copy = objects.head(key=key)
    if copy is None or (copy.sha256, copy.size) != (source.sha256, source.size):
        return None
    return replace(source, key=key, version_id=copy.version_id)
