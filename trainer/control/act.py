"""Carry out one action that `runs.reconcile` decided on: the side effects on a run. Each may be repeated, and
two callers may act at once: the one that loses a compare-and-swap reads again.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

from trainer.aws.objects import Conflict
from trainer.base.errors import ConnectionFailed, TrainerError
from trainer.base.instants import iso
from trainer.control.carry import carry, write_ids
from trainer.control.cloud import Cloud
from trainer.control.fleet import create_fleet_request
from trainer.control.learn import learn_boot, learn_full, learn_time
from trainer.control.report import leave_report
from trainer.control.tokens import delete_tokens
from trainer.runs.actions import (
    Action,
    ArmKill,
    ArmSweep,
    Carry,
    Close,
    Create,
    DeletePlacementGroup,
    DeleteSchedule,
    DeleteTokens,
    Store,
    Terminate,
    Wait,
    WriteIds,
    WriteStop,
    kill_schedule,
    sweep_schedule,
)
from trainer.runs.attempts import Launch
from trainer.runs.index import take_out
from trainer.runs.launching import latest_start
from trainer.runs.observation import Observation, Remains
from trainer.runs.receipt import make_receipt
from trainer.runs.record import RunRecord
from trainer.runs.store import read_record, receipt_key, stop_key, swap_record

# after the instant that is stored before it: a request may arrive five minutes after its signature
LATEST_CALL = timedelta(seconds=30)


def act(action: Action, cloud: Cloud, record: RunRecord, etag: str, observed: Observation) -> bool:
    """Carry out one action and return whether to observe again immediately."""
    run_id = record.run_id
    match action:
        case ArmSweep():
            cloud.arm_sweep(name=sweep_schedule(run_id), run_id=run_id, at=action.at)
        case Carry():
            carry(cloud.objects, record, action.attempt)
        case WriteIds():
            ids, nodes = action.instance_ids, record.nodes
            write_ids(cloud.objects, run_id, action.attempt, ids, action.addresses, nodes)
        case ArmKill():
            name = kill_schedule(run_id, action.attempt)
            cloud.arm_kill(name=name, instance_ids=action.instance_ids, at=action.at)
            return False  # the record's Store follows, or a wait for the addresses of its nodes
        case DeletePlacementGroup():
            _delete_group(cloud, action)
        case Create():
            _create(cloud, record, etag, action.launch)
        case WriteStop():
            body = json.dumps({"requested_at": iso(action.requested_at)}).encode()
            cloud.objects.put(key=stop_key(run_id, action.attempt), body=body)
        case Terminate():
            cloud.terminate(instance_ids=action.instance_ids)
            return False  # takes minutes: no use in observing at once
        case DeleteTokens():
            delete_tokens(cloud.objects, action.nodes)
        case DeleteSchedule():
            cloud.delete_schedule(name=action.name)
        case Close():
            _close(cloud, action.record, etag, observed)
        case Store() | Wait():
            return False
    return True


def _delete_group(cloud: Cloud, action: DeletePlacementGroup) -> None:
    """Delete a placement group, and leave one that can't be deleted unless the run waits for it."""
    try:
        cloud.delete_placement_group(name=action.name)
    except TrainerError:
        if action.waits:
            raise


def _create(cloud: Cloud, record: RunRecord, etag: str, launch: Launch) -> None:
    """Call CreateFleet and store its answer. Raises ConnectionFailed for an unclear one: the intent stays
    open. It does so without a call where this machine slept since it stored the call: another caller may have
    given up looking for the instance.
    """
    rung = record.ladder[launch.rung]
    if cloud.now() > launch.last_call_at + LATEST_CALL:
        raise ConnectionFailed(
            f"CreateFleet for {rung.instance_type} was due at {iso(launch.last_call_at)} and is not called",
            why="this machine slept",
            do="The run goes on from its record.",
        )
    if record.placement_group:
        cloud.make_placement_group(name=record.placement_group)
    answer = cloud.create_fleet(request=create_fleet_request(record, rung, launch))
    if answer.kind == "unclear":
        what = f"no clear answer from CreateFleet for {rung.instance_type} in {rung.availability_zone}"
        raise ConnectionFailed(
            what,
            why=f"{answer.code}: {answer.message}",
            do="The call is repeated once under the same token; then its instance is looked for by its tag.",
        )
    if answer.kind == "created":
        answered = replace(launch, outcome="created", instance_ids=answer.instance_ids)
    else:
        answered = replace(
            launch,
            outcome="refused",
            error_code=answer.code,
            error_message=answer.message,
            instance_ids=answer.instance_ids,
            unanswered=answer.of_the_call and launch.calls > 1,
        )
    _store_answer(cloud, record, etag, answered)
    if answered.outcome == "refused" and answered.refusal.error_class == "capacity":
        learn_full(cloud.objects, rung, cloud.now())


def _store_answer(cloud: Cloud, record: RunRecord, etag: str, launch: Launch) -> None:
    """Store the answer to an intent in the current record; after a lost race, retry on the newer record."""
    while True:
        known = (
            [item for item in record.attempt.launches if item.token == launch.token] if record.attempt else []
        )
        if not known or known[0].outcome == "created" or record.state == "closed":
            return
        try:
            swap_record(cloud.objects, record.with_launch(launch, cloud.now()), etag)
            return
        except Conflict:
            record, etag = read_record(cloud.objects, record.run_id, seen=True)


def _close(cloud: Cloud, record: RunRecord, etag: str, observed: Observation) -> None:
    """Write the receipt once, close the record, remove the run from the index of open runs, then leave its
    report.

    An existing receipt was written by another caller.
    """
    receipt = make_receipt(record, replace(observed, left=_left(cloud, record)))
    body = json.dumps(receipt, indent=1).encode()
    try:
        cloud.objects.put(key=receipt_key(record.run_id), body=body, create=True)
        learn_boot(cloud.objects, receipt)
        learn_time(cloud.objects, record, receipt)
    except Conflict:
        if cloud.objects.head(key=receipt_key(record.run_id)) is None:
            raise  # S3 reports a race, and there is no receipt yet
    swap_record(cloud.objects, record, etag)
    with suppress(TrainerError):  # the next look removes it
        take_out(cloud.objects, closed=[record.run_id])
    leave_report(cloud, record)


def _left(cloud: Cloud, record: RunRecord) -> tuple[Remains, ...] | None:
    """Return what AWS shows of a run whose instances are gone and whose schedules were deleted; None if it
    can't be seen: a run is closed all the same.
    """
    if not record.has_instances:
        return ()
    run_id, ids = record.run_id, tuple(seen.instance_id for seen in record.instances)
    names = [sweep_schedule(run_id), *(kill_schedule(run_id, item.number) for item in record.attempts)]
    try:
        armed = {name: cloud.scheduled(name=name) for name in names}
        schedules = [Remains(kind="schedule", id=name, state=iso(at)) for name, at in armed.items() if at]
        return (*(cloud.left(run_id=run_id, instance_ids=ids) if ids else ()), *schedules)
    except TrainerError:
        return None


def give_up_start(cloud: Cloud, record: RunRecord, etag: str, error: TrainerError) -> bool:
    """End a run whose start AWS refuses for good: a schedule that can't be armed, a missing permission. Where
    AWS is out of reach, do so once the job could not finish any more.

    An intent that was called stays open, because its instance may still appear; one that was not is
    abandoned.
    """
    if record.state != "starting":
        return False
    launch, ended = record.last_launch, record.ended("failed", error.as_dict(), cloud.now())
    late = False
    if launch is not None and launch.outcome == "intended" and launch.called_at is None:
        late = cloud.now() >= latest_start(record, record.ladder[launch.rung])
        ended = ended.with_launch(replace(launch, outcome="abandoned"), cloud.now())
    if isinstance(error, ConnectionFailed) and not late:
        return False
    with suppress(Conflict):  # another caller went on: look again
        swap_record(cloud.objects, ended, etag)
    return True
