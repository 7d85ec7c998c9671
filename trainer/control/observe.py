"""One look at a run: instances first, then schedules, the node's heartbeat and result, and its models. Reads only."""

from __future__ import annotations

import json

from trainer.control.cloud import Cloud
from trainer.errors import TrainingFailed
from trainer.registry.cards import card_of
from trainer.runs.actions import kill_schedule, sweep_schedule
from trainer.runs.lease import Heartbeat, heartbeat_key, read_heartbeat
from trainer.runs.observation import ALIVE, ModelSeen, NodeResult, Observation, read_result
from trainer.runs.record import RunRecord
from trainer.runs.store import Objects, models_prefix, result_key, stop_key


def observe(cloud: Cloud, record: RunRecord, *, may_start: bool = True) -> Observation:
    """Look at everything that a decision about this run needs. Raises TrainerError where AWS can't be asked."""
    run_id, objects, attempt = record.run_id, cloud.objects, record.attempt
    instances = cloud.instances(run_id=run_id)
    alive = any(instance.state in ALIVE for instance in instances)
    names: list[str] = []
    if record.state == "starting" or (record.state == "ending" and not alive):
        names = [sweep_schedule(run_id), *(kill_schedule(run_id, item.number) for item in record.attempts)]
    armed = {name: cloud.scheduled(name=name) for name in names}
    result = _result(objects, run_id, attempt.number) if attempt else None
    stop_written = bool(attempt and record.stop_requested_at and objects.head(key=stop_key(run_id, attempt.number)) is not None)
    return Observation(
        instances=instances,
        schedules={name: at for name, at in armed.items() if at is not None},
        heartbeat=_heartbeat(objects, run_id, attempt.number) if attempt else None,
        result=result,
        stop_written=stop_written,
        models=models_seen(objects, record, result) if record.state == "ending" and not alive else None,
        may_start=may_start,
    )


def models_seen(objects: Objects, record: RunRecord, result: NodeResult | None) -> tuple[ModelSeen, ...]:
    """Return the models of the run's attempt as S3 has them: those that the result names, else all in its folder."""
    if record.attempt is None:
        return ()
    if result is not None:
        stored = (objects.head(key=model["key"], version_id=model["version_id"]) for model in result.models)
        return tuple(
            ModelSeen(key=item.key, version_id=item.version_id, sha256=item.sha256) for item in stored if item is not None
        )
    models = []
    for listed in objects.list(prefix=models_prefix(record.run_id, record.attempt.number)):
        item = objects.head(key=listed.key) if listed.key.endswith(".safetensors") else None
        if item is not None:
            card = card_of(objects, key=item.key, version_id=item.version_id)
            metrics = card.metrics if card else {}
            models.append(ModelSeen(key=item.key, version_id=item.version_id, sha256=item.sha256, metrics=metrics))
    return tuple(models)


def _heartbeat(objects: Objects, run_id: str, attempt: int) -> Heartbeat | None:
    stored = objects.get(key=heartbeat_key(run_id, attempt))
    if stored is None:
        return None
    try:
        return read_heartbeat(json.loads(stored.body))
    except (ValueError, KeyError, TypeError):
        return None  # no heartbeat of ours: the boot allowance decides


def _result(objects: Objects, run_id: str, attempt: int) -> NodeResult | None:
    key = result_key(run_id, attempt)
    stored = objects.get(key=key)
    if stored is None:
        return None
    try:
        return read_result(json.loads(stored.body))
    except (ValueError, KeyError, TypeError) as error:
        unread = TrainingFailed(f"the node's result {key} can't be read", why=repr(error), do="Launch again.")
        return NodeResult(state="failed", exit_code=unread.exit_code, error=unread.as_dict())
