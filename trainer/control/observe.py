"""Observe a run: instances first, then schedules, the node's lease, progress and result, and what it left.
Reads only.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any, TypeVar

from trainer.aws.objects import Objects, Stored, given
from trainer.base.errors import TrainerError
from trainer.base.strict_json import Unsound, check_values
from trainer.base.symbols import folders_of
from trainer.control.cloud import Cloud
from trainer.control.reported import (
    at_once,
    body_of,
    last_report,
    listed,
    read_reports,
    with_what_they_left,
)
from trainer.runs import capacity
from trainer.runs.actions import kill_schedule, sweep_schedule
from trainer.runs.keys import NodeKeys
from trainer.runs.observation import ALIVE, ModelSeen, NodeSeen, Observation, all_gone, merge
from trainer.runs.receipt import outputs_of
from trainer.runs.record import RunRecord
from trainer.runs.repeated import reached_steps, steps_twice
from trainer.runs.reports import CHECKPOINT_COUNTS, NodeResult
from trainer.runs.start_file import StartFile, check_keys, stored_start
from trainer.runs.store import start_key, stop_key
from trainer.store.listing import card_of, stored_models

T = TypeVar("T")
R = TypeVar("R")
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
    told = with_what_they_left(objects, record, read_reports(objects, record, now))
    seen = replace(
        told,
        instances=instances,
        schedules={name: at for name, at in armed.items() if at is not None},
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
    if record.state in ("running", "ending") and record.has_instances:
        seen = _with_boot_logs(cloud, record, seen)
    if not _to_be_closed(record, seen, now):
        return seen
    left = left_behind(objects, record, seen)
    found = ("result", "nodes", "start", "models", "outputs", "scripts", "missing")
    return replace(seen, **{name: getattr(left, name) for name in found})


def left_behind(objects: Objects, record: RunRecord, seen: Observation | None = None) -> Observation:
    """Return what the record's last attempt left in S3, and the start file with what earlier ones did.

    The result is read unless this look has `seen` it; then only models that S3 holds as reported count. An
    attempt without a start file has launched nothing: the one before it counts.
    """
    start = _start(objects, record)
    if start is None and record.attempt is not None and record.attempt.number > 1:
        left = left_behind(objects, record.as_of(record.attempt.number - 1))
        return replace(left, start=_folded(record, left), heartbeat=None)
    if unread := seen is None or seen.result is None:
        told = read_reports(objects, record, AT_ANY_TIME)
    else:
        told = seen if seen.nodes else replace(seen, heartbeat=last_report(objects, record, AT_ANY_TIME))
    result, nodes = told.result, told.nodes
    models = models_seen(objects, record, result, nodes)
    if result is not None and unread:
        there = {(model.key, model.version_id, model.sha256) for model in models}
        sound = [item for item in result.models if (item["key"], item["version_id"], item["sha256"]) in there]
        result = replace(result, models=tuple(sound))
    return replace(
        outputs_seen(objects, record),
        result=result,
        heartbeat=told.heartbeat,
        nodes=nodes,
        models=models,
        start=start,
    )


def _folded(record: RunRecord, left: Observation) -> StartFile | None:
    """Return the start file of an attempt with what the attempt repeated, reached and sent by its last
    report.
    """
    start, beat = left.start, left.heartbeat
    if start is None:
        return None
    told = beat.durable if beat and not (left.result and left.result.checkpoints) else {}  # which has them
    sent = {name: start.sent.get(name, 0) + told.get(name, 0) for name in CHECKPOINT_COUNTS}
    reached = reached_steps(start, beat, pieces=[one.piece for one in record.pieces])
    return replace(start, steps_twice=steps_twice(start, beat), reached=reached, sent=sent)


def files_so_far(
    objects: Objects, record: RunRecord, *, had: Collection[tuple[str, str]] = ()
) -> list[dict[str, Any]]:
    """Return the output files of a run that goes on, those of earlier attempts among them. `had`: keys and
    versions that the caller has fetched, which S3 is not asked about again.
    """
    return outputs_of(replace(outputs_seen(objects, record, had=had), start=_start(objects, record)))


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


def _full(objects: Objects, now: datetime) -> frozenset[str]:
    """Return the pools that were full a moment ago; none if they can't be read."""
    with suppress(TrainerError):
        stored = objects.get(key=capacity.OBJECT, first_bytes=capacity.MOST_BYTES + 1)
        return frozenset(capacity.full_from(stored.body, now)) if stored else frozenset()
    return frozenset()


def _with_boot_logs(cloud: Cloud, record: RunRecord, seen: Observation) -> Observation:
    """Return a look with the boot log of the run's last instance if none is alive and it has no result; of
    several nodes with that of each that ended without one.
    """
    if not seen.nodes:
        needed = seen.result is None and not any(item.state in ALIVE for item in seen.instances)
        return replace(seen, boot_log=_boot_log(cloud, record.nodes[-1])) if needed and record.nodes else seen
    alive = {item.instance_id for item in seen.instances if item.state in ALIVE}
    known = {keys.instance_id: keys for keys in record.nodes}
    nodes = tuple(
        node
        if node.result is not None or node.instance_id in alive
        else replace(node, boot_log=_boot_log(cloud, known[node.instance_id]))
        for node in seen.nodes
    )
    return replace(seen, nodes=nodes, boot_log=next((node.boot_log for node in nodes if node.boot_log), ""))


def _boot_log(cloud: Cloud, keys: NodeKeys) -> str:
    """Return the boot log of an instance; '' if AWS has none or fails: a run can end without it."""
    with suppress(TrainerError):
        return boot_log(cloud, keys)
    return ""


def boot_log(cloud: Cloud, keys: NodeKeys) -> str:
    """Return bootstrap.log, or without one the console's output; '' if neither exists yet. Raises
    TrainerError.
    """
    return bootstrap_log(cloud.objects, keys) or cloud.console_output(instance_id=keys.instance_id)


def bootstrap_log(objects: Objects, keys: NodeKeys) -> str:
    """Return the log that the bootstrap sent to S3, '' if it sent none."""
    return (body_of(objects, keys.bootstrap_log, MOST_BOOT_LOG_BYTES) or b"").decode(errors="replace")


def _to_be_closed(record: RunRecord, seen: Observation, now: datetime) -> bool:
    """Return whether the models must be observed now. There may be thousands, and each costs a request, so
    they come last.
    """
    is_known = record.state == "ending" and merge(record, seen, now) == record.instances
    return is_known and all_gone(record, seen)


def models_seen(
    objects: Objects, record: RunRecord, result: NodeResult | None, nodes: Sequence[NodeSeen] = ()
) -> tuple[ModelSeen, ...]:
    """Return the models of the run's attempt in S3: those that the result names, else those directly in its
    folder. Of several nodes both, where some have no result.
    """
    what, named, keys = f"models of {record.run_id}", list[tuple[str, str]](), list[str]()
    if result is not None:
        named = [(str(model["key"]), str(model["version_id"])) for model in result.models]
    if result is None or any(node.result is None for node in nodes):
        files = {key.rpartition("/")[2] for key, _ in named}
        keys = [item.key for item in stored_models(objects, record)]
        keys = [key for key in keys if key.rpartition("/")[2] not in files]
    found = at_once(named, lambda model: _head(objects, *model), what)
    found += at_once(keys, lambda key: _with_card(objects, key), what)
    return tuple(model for model in found if model is not None)


def outputs_seen(
    objects: Objects, record: RunRecord, *, had: Collection[tuple[str, str]] = ()
) -> Observation:
    """Return the output files of a script that its nodes list and that S3 holds as listed, or that are `had`
    by key and version, the paths of the others, and the ends of the pieces in those lists.
    """
    if not record.lists_ends:
        return Observation()
    lists = [listed(objects, keys) for keys in record.nodes]
    read = [one for one in lists if one is not None]
    found = {item["file"]: item for files, _ in read for item in files}
    above = folders_of(found)  # which may be files of another node
    files = [item for path, item in found.items() if path not in above]
    unknown = [item for item in files if (item["key"], item["version_id"]) not in had]
    seen = at_once(unknown, lambda item: _is_there(objects, item), f"files of {record.run_id}")
    lacks = {item["file"] for item, is_there in zip(unknown, seen, strict=True) if not is_there}
    return Observation(
        outputs=tuple(item for item in files if item["file"] not in lacks),
        missing=("",) * (len(read) < len(lists)) + tuple(path for path in found if path in lacks),
        scripts=tuple(item for _, scripts in read for item in scripts),
    )


def _is_there(objects: Objects, item: Mapping[str, Any]) -> bool:
    stored = given(lambda: objects.head(key=item["key"], version_id=item["version_id"]))
    return stored is not None and (stored.checksum, stored.size) == (item["sha256"], item["bytes"])


def _head(objects: Objects, key: str, version_id: str) -> ModelSeen | None:
    """Return a model as S3 describes it; None if there is none, or if its writer made it unreadable."""
    stored = given(lambda: objects.head(key=key, version_id=version_id))
    return _seen(stored) if stored is not None and stored.key else None


def _with_card(objects: Objects, key: str) -> ModelSeen | None:
    seen = _head(objects, key, "")
    if seen is None:
        return None
    card = card_of(objects, key=seen.key, version_id=seen.version_id)
    metrics = card.metrics if card else {}
    try:  # a card may have larger numbers than a receipt, and more lists in each other
        check_values({"models": [{"metrics": metrics}]}, "the receipt")
    except Unsound:
        metrics = {}
    return replace(seen, metrics=metrics)


def _seen(stored: Stored) -> ModelSeen:
    return ModelSeen(key=stored.key, version_id=stored.version_id, sha256=stored.sha256)


def reports(cloud: Cloud, record: RunRecord) -> dict[int, Observation]:
    """Return what each attempt began with and what its nodes reported, by its number: start file, last
    heartbeat and result. Raises TrainerError.
    """
    seen, now = {}, cloud.now()
    for number, attempt in enumerate(record.attempts, 1):
        until = replace(record, attempts=record.attempts[:number])  # whose last attempt is this one
        told = read_reports(cloud.objects, until, now)
        seen[attempt.number] = replace(told, start=_start(cloud.objects, until))
    return seen
