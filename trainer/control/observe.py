"""Observe a run: instances first, then schedules, the node's lease, progress and result, and what it left.
Reads only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any, TypeVar

from trainer.base.errors import ConnectionFailed, TrainerError, TrainingFailed
from trainer.base.strict_json import Unsound, read_object
from trainer.base.symbols import folders_of
from trainer.control.cloud import Cloud
from trainer.runs import capacity
from trainer.runs.actions import kill_schedule, sweep_schedule
from trainer.runs.keys import NodeKeys
from trainer.runs.lease import MOST_LEASE_BYTES, read_lease
from trainer.runs.observation import ALIVE, ModelSeen, Observation, all_gone, merge
from trainer.runs.receipt import outputs_of
from trainer.runs.record import RunRecord
from trainer.runs.repeated import reached_steps, steps_twice
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
from trainer.runs.start_file import StartFile, check_keys, stored_start
from trainer.runs.store import Objects, Stored, given, start_key, stop_key
from trainer.store.listing import card_of, stored_models

T = TypeVar("T")
R = TypeVar("R")
ASKED_AT_ONCE = 10  # as many connections as boto3 keeps open
S3_SECONDS = 120.0  # for asking about the models or files of one run; 2,000 take 16 s at 80 ms each
AT_ANY_TIME = datetime(9999, 1, 1, tzinfo=timezone.utc)  # of a report that is read for its counts alone
MOST_BOOT_LOG_BYTES = 256 * 1024  # bootstrap.sh sends no more; EC2 keeps 64 KB of a console


def observe(cloud: Cloud, record: RunRecord, *, may_start: bool = True) -> Observation:
    """Return everything that a decision about this run needs. Raises TrainerError if AWS fails."""
    run_id, objects, attempt = record.run_id, cloud.objects, record.attempt
    instances = cloud.instances(run_id=run_id) if record.has_instances else ()
    alive = any(instance.state in ALIVE for instance in instances)
    names: list[str] = []
    between = record.state in ("recovering", "ending") and not alive
    if record.has_instances and (record.state == "starting" or between):
        names = [sweep_schedule(run_id), *(kill_schedule(run_id, item.number) for item in record.attempts)]
    armed = {name: cloud.scheduled(name=name) for name in names}
    now = cloud.now()
    launching = record.state == "starting" and record.has_instances and may_start
    start = _start(objects, record) if launching else None
    seen = Observation(
        instances=instances,
        schedules={name: at for name, at in armed.items() if at is not None},
        heartbeat=_last_report(objects, record, now),
        result=_node_result(objects, record),
        stop_written=bool(
            attempt
            and record.stop_requested_at
            and objects.head(key=stop_key(run_id, attempt.number)) is not None
        ),
        full=_full(objects, now) if record.state == "starting" and may_start else frozenset(),
        start=start,
        start_missing=launching and start is None,
        may_start=may_start,
    )
    if record.state in ("running", "ending") and not alive and seen.result is None and record.has_instances:
        seen = replace(seen, boot_log=_boot_log(cloud, record))
    if not _to_be_closed(record, seen, now):
        return seen
    left = left_behind(objects, record, seen.result)
    found = ("result", "start", "models", "outputs", "scripts", "missing")
    return replace(seen, **{name: getattr(left, name) for name in found})


def left_behind(objects: Objects, record: RunRecord, result: NodeResult | None = None) -> Observation:
    """Return what the record's last attempt left in S3, and the start file with what earlier ones did.

    Of its result, which is read unless it is given, the models count that S3 has as reported. An attempt
    without a start file has launched nothing: then the one before it counts.
    """
    start = _start(objects, record)
    if start is None and record.attempt is not None and record.attempt.number > 1:
        left = left_behind(objects, record.as_of(record.attempt.number - 1))
        return replace(left, start=_folded(record, left), heartbeat=None)
    if unread := result is None:
        result = _node_result(objects, record)
    models = models_seen(objects, record, result)
    if result is not None and unread:
        there = {(model.key, model.version_id, model.sha256) for model in models}
        sound = [item for item in result.models if (item["key"], item["version_id"], item["sha256"]) in there]
        result = replace(result, models=tuple(sound))
    return replace(
        outputs_seen(objects, record),
        result=result,
        heartbeat=_last_report(objects, record, AT_ANY_TIME),
        models=models,
        start=start,
    )


def _folded(record: RunRecord, left: Observation) -> StartFile | None:
    """Return the start file of an attempt with the steps that the attempt itself repeated and reached."""
    if left.start is None:
        return None
    reached = reached_steps(left.start, left.heartbeat, pieces=[one.piece for one in record.pieces])
    twice = steps_twice(left.start, left.heartbeat)
    return replace(left.start, steps_twice=twice, reached=reached)


def files_so_far(objects: Objects, record: RunRecord) -> list[dict[str, Any]]:
    """Return the output files of a run that goes on, those of earlier attempts among them."""
    return outputs_of(replace(outputs_seen(objects, record), start=_start(objects, record)))


def _start(objects: Objects, record: RunRecord) -> StartFile | None:
    """Return the start file of the attempt that is launched, or of the last one. Raises ConfigError for one
    that names what is not the run's: people who launch may write it.
    """
    if not record.has_instances:
        return None
    number = record.attempt.number if record.attempt else 1
    start = stored_start(objects.get(key=start_key(record.run_id, number)), record.run_id, number)
    if start is not None:
        check_keys(start, record.lineage)
    return start


def _node_result(objects: Objects, record: RunRecord) -> NodeResult | None:
    return next(filter(None, (_result(objects, keys, record) for keys in record.nodes)), None)


def _full(objects: Objects, now: datetime) -> frozenset[str]:
    """Return the pools that were full a moment ago; none if they can't be read."""
    with suppress(TrainerError):
        stored = objects.get(key=capacity.OBJECT, first_bytes=capacity.MOST_BYTES + 1)
        return frozenset(capacity.full_from(stored.body, now)) if stored else frozenset()
    return frozenset()


def _boot_log(cloud: Cloud, record: RunRecord) -> str:
    """Return the boot log of the run's last instance; '' if AWS has none or fails: a run can end
    without it.
    """
    with suppress(TrainerError):
        return boot_log(cloud, record.nodes[-1]) if record.nodes else ""
    return ""


def boot_log(cloud: Cloud, keys: NodeKeys) -> str:
    """Return bootstrap.log, or without one the console's output; '' if neither exists yet. Raises
    TrainerError.
    """
    return bootstrap_log(cloud.objects, keys) or cloud.console_output(instance_id=keys.instance_id)


def bootstrap_log(objects: Objects, keys: NodeKeys) -> str:
    """Return the log that the bootstrap sent to S3, '' if it sent none."""
    return (_body(objects, keys.bootstrap_log, MOST_BOOT_LOG_BYTES) or b"").decode(errors="replace")


def _to_be_closed(record: RunRecord, seen: Observation, now: datetime) -> bool:
    """Return whether the models must be observed now. There may be thousands, and each costs a request, so
    they come last.
    """
    is_known = record.state == "ending" and merge(record, seen, now) == record.instances
    return is_known and all_gone(record, seen)


def models_seen(objects: Objects, record: RunRecord, result: NodeResult | None) -> tuple[ModelSeen, ...]:
    """Return the models of the run's attempt in S3: those that the result names, else those directly in its
    folder.
    """
    if result is not None:
        named = [(str(model["key"]), str(model["version_id"])) for model in result.models]
        found = _at_once(named, lambda model: _head(objects, *model), f"models of {record.run_id}")
    else:
        keys = [item.key for item in stored_models(objects, record)]
        found = _at_once(keys, lambda key: _with_card(objects, key), f"models of {record.run_id}")
    return tuple(model for model in found if model is not None)


def outputs_seen(objects: Objects, record: RunRecord) -> Observation:
    """Return the output files of a script that its nodes list and that S3 holds as listed, the paths of the
    others, and the ends of the pieces in those lists.
    """
    if record.leaves != "files":
        return Observation()
    lists = [_listed(objects, keys) for keys in record.nodes]
    read = [one for one in lists if one is not None]
    listed = {item["file"]: item for files, _ in read for item in files}
    above = folders_of(listed)  # which may be files of another node
    files = [item for path, item in listed.items() if path not in above]
    there = _at_once(files, lambda item: _is_there(objects, item), f"files of {record.run_id}")
    found = list(zip(files, there, strict=True))
    return Observation(
        outputs=tuple(item for item, is_there in found if is_there),
        missing=("",) * (len(read) < len(lists))
        + tuple(item["file"] for item, is_there in found if not is_there),
        scripts=tuple(item for _, scripts in read for item in scripts),
    )


def _listed(
    objects: Objects, keys: NodeKeys
) -> tuple[tuple[dict[str, Any], ...], tuple[dict[str, Any], ...]] | None:
    """Return the files that a node lists, and the ended pieces; empty without a list, None for one that can't
    be read.
    """
    body = _body(objects, keys.output_index, MOST_OUTPUTS_BYTES + 1)
    if body is None:
        return (), ()
    try:
        listed = read_object(body, most_bytes=MOST_OUTPUTS_BYTES, name="the list")
        return read_outputs(listed, prefix=keys.outputs), read_scripts(listed)
    except Unsound:
        return None


def _is_there(objects: Objects, item: Mapping[str, Any]) -> bool:
    stored = given(lambda: objects.head(key=item["key"], version_id=item["version_id"]))
    return stored is not None and (stored.checksum, stored.size) == (item["sha256"], item["bytes"])


def _at_once(items: Sequence[T], look: Callable[[T], R], what: str) -> list[R]:
    """Ask S3 about each item, several at a time. Raises ConnectionFailed if it takes longer than
    S3_SECONDS; the next look starts over.
    """
    pool = ThreadPoolExecutor(ASKED_AT_ONCE)
    try:
        return list(pool.map(look, items, timeout=S3_SECONDS))
    except TimeoutError as error:
        late = f"S3 did not describe the {len(items)} {what} within {S3_SECONDS:.0f} s"
        raise ConnectionFailed(late, do="Try again later.") from error
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _head(objects: Objects, key: str, version_id: str) -> ModelSeen | None:
    """Return a model as S3 describes it; None if there is none, or if its writer made it unreadable."""
    stored = given(lambda: objects.head(key=key, version_id=version_id))
    return _seen(stored) if stored is not None and stored.key else None


def _with_card(objects: Objects, key: str) -> ModelSeen | None:
    seen = _head(objects, key, "")
    if seen is None:
        return None
    card = card_of(objects, key=seen.key, version_id=seen.version_id)
    return replace(seen, metrics=card.metrics if card else {})


def _seen(stored: Stored) -> ModelSeen:
    return ModelSeen(key=stored.key, version_id=stored.version_id, sha256=stored.sha256)


def _last_report(objects: Objects, record: RunRecord, now: datetime) -> Heartbeat | None:
    beats = filter(None, (_heartbeat(objects, keys, now) for keys in record.nodes))
    return max(beats, key=lambda beat: beat.at, default=None)


def _heartbeat(objects: Objects, keys: NodeKeys, now: datetime) -> Heartbeat | None:
    """Return a node's last report. A malformed lease or progress counts as missing: then the boot allowance
    decides.
    """
    body = _body(objects, keys.lease, MOST_LEASE_BYTES + 1)
    if body is None:
        return None
    try:
        lease = read_lease(body, now)
    except Unsound:
        return None
    try:
        return heartbeat(lease, _body(objects, keys.progress, MOST_PROGRESS_BYTES + 1) or b"")
    except Unsound as error:
        return replace(heartbeat(lease), message=f"the node's progress can't be read: {error}")


def _result(objects: Objects, keys: NodeKeys, record: RunRecord) -> NodeResult | None:
    body = _body(objects, keys.result, MOST_RESULT_BYTES + 1)
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


def _body(objects: Objects, key: str, first_bytes: int) -> bytes | None:
    """Return the first bytes of a node's object; b"" if S3 refuses it."""
    stored = given(lambda: objects.get(key=key, first_bytes=first_bytes))
    return None if stored is None else stored.body


def reports(cloud: Cloud, record: RunRecord) -> dict[int, Observation]:
    """Return what each attempt began with and what its nodes reported, by its number: start file, last
    heartbeat and result. Raises TrainerError.
    """
    seen, now = {}, cloud.now()
    for number, attempt in enumerate(record.attempts, 1):
        until = replace(record, attempts=record.attempts[:number])  # whose last attempt is this one
        seen[attempt.number] = Observation(
            heartbeat=_last_report(cloud.objects, until, now),
            result=_node_result(cloud.objects, until),
            start=_start(cloud.objects, until),
        )
    return seen
