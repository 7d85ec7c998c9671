"""Write what a run needs to the bucket: plan of the data, manifest, then the record. Then `control.drive`
takes over.

Nothing here starts a machine. If it is killed half-way, it leaves a manifest that nothing reads.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta

from trainer.aws.objects import Objects
from trainer.job.pieces import takes_all_devices
from trainer.job.pieces.piece import Piece
from trainer.launch.bundle import BundleName
from trainer.launch.manifest import build_manifest, write_manifest
from trainer.launch.plan import RunPlan
from trainer.launch.planning import Planned
from trainer.launch.preflight import Offers
from trainer.launch.tasks import Task
from trainer.launch.work import Account, Work
from trainer.runs.attempts import Attempt
from trainer.runs.index import begin_run
from trainer.runs.manifest import Manifest
from trainer.runs.record import Driver, RunPiece, RunRecord, new_run_id
from trainer.runs.store import bars_plan_key

# How long a run waits for capacity whose job does not say: at a desk somebody can choose another machine.
QUEUE: dict[Driver, timedelta] = {"desk": timedelta(0), "control": timedelta(hours=1)}


def record_of(
    work: Work,
    plan: RunPlan,
    account: Account,
    *,
    preflight_at: datetime,
    now: datetime,
    run_id: str = "",
    driver: Driver = "desk",
) -> RunRecord:
    """Return the record of a run that begins now, in state "starting"; its id is new unless it is given."""
    outputs = account.outputs
    role, profile = work.role(outputs)
    return RunRecord(
        run_id=run_id or new_run_id(work.job.name, now),
        driver=driver,
        work=work.name,
        leaves=work.leaves,
        project=outputs.project,
        stack=outputs.stack,
        owner=outputs.owner,
        place=plan.place.name,
        bucket=outputs.bucket,
        instance_role_id=role,
        instance_profile=profile,
        job=work.job.to_dict(),
        pieces=recorded(plan.pieces),
        num_nodes=work.num_nodes,
        one_model=work.num_nodes > 1 and takes_all_devices(work.job),
        left_out=work.refused,
        ladder=plan.ladder,
        bundle_key=work.code.key,
        bundle_sha256=work.code.sha256,
        budget_usd=plan.budget_usd,
        estimated_usd=plan.estimated_usd,
        preflight_at=preflight_at,
        created_at=now,
        deadline=now + plan.run_limit.duration,
        deadline_cause=plan.run_limit.cause,
        queue_seconds=work.job.machine.queue_for(QUEUE[driver]).total_seconds(),
    )


def record_here(record: RunRecord, *, user_id: str, host: str) -> RunRecord:
    """Return the record of a run on the caller's own machine: it has no instance, and is running."""
    return replace(
        record,
        instance_role_id="",
        user_id=user_id,
        host=host,
        deadline=record.deadline.replace(microsecond=0),
        state="running",
        attempts=(Attempt(number=1, created_at=record.created_at),),
    )


def recorded(pieces: Iterable[Piece]) -> tuple[RunPiece, ...]:
    """Return pieces as a record keeps them: by name, kind and series."""
    return tuple(
        RunPiece(
            model=piece.name,
            piece=piece.title,
            kind=piece.kind,
            series=piece.series,
            fold=piece.fold,
            seed=piece.seed,
        )
        for piece in pieces
    )


def register(record: RunRecord, planned: Planned, account: Account, *, ssh_key: str = "") -> None:
    """Write plan, manifest, index entry and record, in this order, so that everything that a record names
    exists.

    The code was uploaded before. `ssh_key`: the run's public key, if its stack has attach = ssh. Raises
    Conflict if the run's manifest or record exists.
    """
    task = planned.work.task(record, account, planned.offers, planned.plan.pieces)
    write_task(record, task, planned.work.code, account.objects, offers=planned.offers, ssh_key=ssh_key)


def manifest_of(record: RunRecord, planned: Planned, account: Account) -> Manifest:
    """Return the manifest that `register` would write."""
    task = planned.work.task(record, account, planned.offers, planned.plan.pieces)
    return build_manifest(record, task, planned.work.code, offers=planned.offers)


def write_task(
    record: RunRecord,
    task: Task,
    bundle: BundleName,
    objects: Objects,
    *,
    offers: Offers | None = None,
    ssh_key: str = "",
) -> None:
    """Write what `register` writes, for a task that was made before."""
    manifest = build_manifest(record, task, bundle, offers=offers, ssh_key=ssh_key)
    if task.bars_plan:
        objects.put(key=bars_plan_key(record.run_id), body=task.bars_plan, create=True)
    write_manifest(manifest, objects)
    begin_run(objects, record)
