"""Write what a run needs to the bucket: plan of the data, manifest, then the record. Then `control.drive`
takes over.

Nothing here starts a machine. If it is killed half-way, it leaves a manifest that nothing reads.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from trainer.aws.stack_outputs import StackOutputs
from trainer.job.job import Job
from trainer.job.pieces.piece import Piece
from trainer.launch.bundle import BundleName
from trainer.launch.manifest import build_manifest, write_manifest
from trainer.launch.plan import LaunchPlan
from trainer.launch.preflight import Offers
from trainer.launch.tasks import Task
from trainer.runs.index import begin_run
from trainer.runs.pieces import RunPiece
from trainer.runs.record import Driver, Leaves, RunRecord, new_run_id
from trainer.runs.store import Objects, plan_key


def new_record(
    job: Job,
    plan: LaunchPlan,
    bundle: BundleName,
    outputs: StackOutputs,
    *,
    preflight_at: datetime,
    now: datetime,
    run_id: str = "",
    driver: Driver = "desk",
    work: str = "train",
    leaves: Leaves = "models",
    secrets: bool = False,
) -> RunRecord:
    """Return the record of a run that begins now, in state "starting"; its id is new unless it is given.

    `work` and `leaves`: of its command. `secrets`: whether that gets any; then its machine has the one role
    that reads them.
    """
    role = outputs.script_role_id if secrets else outputs.instance_role_id
    return RunRecord(
        run_id=run_id or new_run_id(job.name, now),
        driver=driver,
        work=work,
        leaves=leaves,
        project=outputs.project,
        stack=outputs.stack,
        owner=outputs.owner,
        place=plan.place.name,
        bucket=outputs.bucket,
        instance_role_id=role,
        instance_profile=outputs.script_profile_arn if secrets else "",
        job=job.to_dict(),
        pieces=recorded(plan.pieces),
        ladder=plan.ladder,
        bundle_key=bundle.key,
        bundle_sha256=bundle.sha256,
        budget_usd=plan.budget_usd,
        estimated_usd=plan.first.dollars_p50 if plan.first.is_estimated else 0.0,
        preflight_at=preflight_at,
        created_at=now,
        deadline=now + plan.run_limit.duration,
        deadline_cause=plan.run_limit.cause,
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


def register(
    record: RunRecord,
    task: Task,
    bundle: BundleName,
    objects: Objects,
    *,
    offers: Offers | None = None,
    ssh_key: str = "",
) -> None:
    """Write plan, manifest, index entry and record, in this order, so that everything that a record names
    exists.

    The code was uploaded before. `offers`: none on the caller's own machine. `ssh_key`: the run's public key,
    if its stack has attach = ssh. Raises Conflict if the run's manifest or record exists.
    """
    manifest = build_manifest(record, task, bundle, offers=offers, ssh_key=ssh_key)
    if task.plan:
        objects.put(key=plan_key(record.run_id), body=task.plan, create=True)
    write_manifest(manifest, objects)
    begin_run(objects, record)
