"""Carries out what `reconcile` decided: one look at the world, one decision, its actions, through a `Cloud`.

Owns observation and side effects, one after the other. Each action may be repeated, and two callers may act at once: whoever
loses a compare-and-swap reads again. Decides nothing itself, but for this: a run that can't be armed is not launched.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime

from trainer.control.cloud import Cloud
from trainer.control.learn import learn
from trainer.errors import ConnectionFailed, TrainerError
from trainer.launch import fleet
from trainer.launch.requests import create_fleet_request
from trainer.registry.cards import card_of
from trainer.runs.lease import Heartbeat, heartbeat_key, read_heartbeat
from trainer.runs.receipt import Receipt, make_receipt
from trainer.runs.reconcile import (
    CALL_LIMIT,
    Action,
    ArmKill,
    ArmSweep,
    Close,
    Create,
    DeleteSchedule,
    Store,
    Terminate,
    Wait,
    WriteStop,
    ending,
    kill_schedule,
    reconcile,
    sweep_schedule,
    with_launch,
)
from trainer.runs.record import Launch, RunRecord, iso
from trainer.runs.store import Conflict, Objects, models_prefix, read_record, receipt_key, result_key, stop_key, swap_record
from trainer.runs.verdict import refused
from trainer.runs.world import ALIVE, ModelSeen, NodeResult, World, read_result

WORTH_ANOTHER_CALL = ("throttle", "consistency")  # refusals that time cures: the same token is used again


@dataclass(frozen=True, kw_only=True)
class Step:
    """One pass: what was decided on, what was decided, and whether it changed anything (if not: sleep before the next)."""

    record: RunRecord
    world: World
    actions: tuple[Action, ...]
    moved: bool
    error: TrainerError | None = None  # what kept an action from being carried out


def step(cloud: Cloud, run_id: str, *, may_start: bool = True) -> Step:
    """Look, decide, act, once. Raises TrainerError where the run can't be looked at; an action's failure is in the Step."""
    record, etag = read_record(cloud.objects, run_id)
    world = observe(cloud, record, may_start=may_start)
    now = cloud.now()
    actions = reconcile(record, world, now)
    moved = False
    try:
        for action in actions:
            moved = _act(action, cloud, record, etag, world, now) or moved
    except Conflict:
        return Step(record=record, world=world, actions=actions, moved=True)
    except TrainerError as error:
        moved = _give_up_start(cloud, record, etag, error)
        return Step(record=record, world=world, actions=actions, moved=moved, error=error)
    return Step(record=record, world=world, actions=actions, moved=moved)


def observe(cloud: Cloud, record: RunRecord, *, may_start: bool = True) -> World:
    """Look at everything that a decision about this run needs, instances first."""
    run_id, objects, attempt = record.run_id, cloud.objects, record.attempt
    instances = cloud.instances(run_id=run_id)
    alive = any(instance.state in ALIVE for instance in instances)
    names: list[str] = []
    if record.state == "starting" or (record.state == "ending" and not alive):
        names = [sweep_schedule(run_id), *(kill_schedule(run_id, item.number) for item in record.attempts)]
    armed = {name: cloud.scheduled(name=name) for name in names}
    result = _result(objects, run_id, attempt.number) if attempt else None
    stop_written = bool(attempt and record.stop_requested_at and objects.head(key=stop_key(run_id, attempt.number)) is not None)
    return World(
        instances=instances,
        schedules={name: at for name, at in armed.items() if at is not None},
        heartbeat=_heartbeat(objects, run_id, attempt.number) if attempt else None,
        result=result,
        stop_written=stop_written,
        models=models_seen(objects, record, result) if record.state == "ending" and not alive else None,
        may_start=may_start,
    )


def models_seen(objects: Objects, record: RunRecord, result: NodeResult | None) -> tuple[ModelSeen, ...]:
    """Return the models of the run's attempt as S3 has them: those that the result names, else all that are there."""
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


def request_stop(cloud: Cloud, run_id: str) -> RunRecord:
    """Write into the record that the run shall stop, whoever drives it, and return the record."""
    while True:
        record, etag = read_record(cloud.objects, run_id)
        if record.stop_requested_at is not None or record.state in ("ending", "closed"):
            return record
        stopping = replace(record, stop_requested_at=cloud.now())
        try:
            swap_record(cloud.objects, stopping, etag)
        except Conflict:
            continue
        return stopping


def read_receipt(objects: Objects, run_id: str) -> Receipt | None:
    """Return a closed run's receipt, or None where there is none yet."""
    stored = objects.get(key=receipt_key(run_id))
    return None if stored is None else dict(json.loads(stored.body))


def _act(action: Action, cloud: Cloud, record: RunRecord, etag: str, world: World, now: datetime) -> bool:
    """Carry one action out and tell whether it is worth looking again at once."""
    run_id = record.run_id
    match action:
        case Store():
            swap_record(cloud.objects, action.record, etag)
        case ArmSweep():
            cloud.arm_sweep(name=sweep_schedule(run_id), run_id=run_id, at=action.at)
        case ArmKill():
            name = kill_schedule(run_id, action.attempt)
            cloud.arm_kill(name=name, instance_ids=action.instance_ids, at=action.at)
        case Create():
            return _create(cloud, record, etag, action.launch)
        case WriteStop():
            body = json.dumps({"requested_at": iso(action.requested_at)}).encode()
            cloud.objects.put(key=stop_key(run_id, action.attempt), body=body)
        case Terminate():
            cloud.terminate(instance_ids=action.instance_ids)
            return False  # it takes its time
        case DeleteSchedule():
            cloud.delete_schedule(name=action.name)
        case Close():
            _close(cloud, action.record, etag, world)
        case Wait():
            return False
    return True


def _create(cloud: Cloud, record: RunRecord, etag: str, launch: Launch) -> bool:
    """Call CreateFleet and store what became of the intent; an answer that is not known leaves it as it is."""
    rung = record.ladder[launch.rung]
    answer = cloud.create_fleet(request=create_fleet_request(record, rung, launch))
    settled = replace(launch, error_code=answer.code, error_message=answer.message, error_class=answer.error_class)
    cured_by_time = answer.error_class in WORTH_ANOTHER_CALL and cloud.now() < launch.intended_at + CALL_LIMIT
    if answer.kind == "ambiguous" or cured_by_time:
        raise ConnectionFailed(
            f"no clear answer from CreateFleet for {rung.instance_type}", why=f"{answer.code}: {answer.message}"
        )
    if answer.kind == "created":
        settled = replace(settled, outcome="created", instance_ids=answer.instance_ids)
    else:
        error = fleet.refusal(rung, answer.code, answer.message).as_dict()
        settled = replace(settled, outcome="refused", error=error)
    _store_launch(cloud, record, etag, settled)
    return True


def _store_launch(cloud: Cloud, record: RunRecord, etag: str, launch: Launch) -> None:
    """Store what became of an intent into whatever the record is by now: an answer of AWS outranks a lost race."""
    while True:
        known = [item for item in record.attempt.launches if item.token == launch.token] if record.attempt else []
        if not known or known[0].outcome == "created" or record.state == "closed":
            return
        try:
            swap_record(cloud.objects, with_launch(record, launch, cloud.now()), etag)
            return
        except Conflict:
            record, etag = read_record(cloud.objects, record.run_id)


def _close(cloud: Cloud, record: RunRecord, etag: str, world: World) -> None:
    """Write the receipt, once, keep what the node learned, then close the record.

    A receipt that is there already was written by another caller.
    """
    body = json.dumps(make_receipt(record, world), indent=1).encode()
    try:
        cloud.objects.put(key=receipt_key(record.run_id), body=body, create=True)
    except Conflict:
        if cloud.objects.head(key=receipt_key(record.run_id)) is None:
            raise  # S3 saw a race that nobody won yet
    if world.result is not None:
        learn(cloud.objects, world.result.tuned)
    swap_record(cloud.objects, record, etag)


def _give_up_start(cloud: Cloud, record: RunRecord, etag: str, error: TrainerError) -> bool:
    """End a run whose start AWS refuses for good (a schedule that can't be armed, a missing permission)."""
    if record.state != "starting" or isinstance(error, ConnectionFailed):
        return False
    launch = record.attempt.launches[-1] if record.attempt and record.attempt.launches else None
    if launch is not None and launch.outcome == "intended":
        record = with_launch(
            record, replace(launch, outcome="refused", error_code="NotArmed", error=error.as_dict()), cloud.now()
        )
    with suppress(Conflict):  # somebody else went on: look again
        swap_record(cloud.objects, ending(record, refused(error.as_dict()), cloud.now()), etag)
    return True


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
        what = {"code": 100, "what": f"the node's result {key} can't be read", "why": repr(error), "do": "Launch again."}
        return NodeResult(state="failed", exit_code=100, error=what)
