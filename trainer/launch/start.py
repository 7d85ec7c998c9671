"""Write what a run needs to the bucket: plan of the data, manifest, then the record. Then `control.drive`
takes over.

Nothing here starts a machine. If it is killed half-way, it leaves a manifest that nothing reads.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from datetime import datetime

from trainer.aws.place import place_named
from trainer.aws.stack_outputs import StackOutputs
from trainer.job.job import Job
from trainer.job.pieces.piece import Piece
from trainer.launch.bundle import BundleName
from trainer.launch.encoder import pinned_encoder
from trainer.launch.inputs import ChosenCandles
from trainer.launch.knowledge import known_tunings, own_profiles, profiles_of
from trainer.launch.manifest import build_manifest, write_manifest
from trainer.launch.plan import LaunchPlan
from trainer.launch.preflight import Offers
from trainer.runs.index import begin_run
from trainer.runs.pieces import RunPiece
from trainer.runs.record import Driver, RunRecord, new_run_id
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
) -> RunRecord:
    """Return the record of a run that begins now, in state "starting"; its id is new unless it is given."""
    return RunRecord(
        run_id=run_id or new_run_id(job.name, now),
        driver=driver,
        project=outputs.project,
        stack=outputs.stack,
        owner=outputs.owner,
        place=plan.place.name,
        bucket=outputs.bucket,
        instance_role_id=outputs.instance_role_id,
        job=job.to_dict(),
        pieces=recorded(plan.pieces),
        ladder=plan.ladder,
        bundle_key=bundle.key,
        bundle_sha256=bundle.sha256,
        budget_usd=plan.budget_usd,
        estimated_usd=plan.first.dollars_p50,
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
    job: Job,
    bundle: BundleName,
    candles: ChosenCandles,
    offers: Offers,
    objects: Objects,
    *,
    ssh_key: str = "",
) -> None:
    """Write plan, manifest, index entry and record, in this order, so that everything that a record names
    exists.

    `ssh_key`: the run's public key, if its stack has attach = ssh. The code was uploaded before.
    Raises Conflict if the run's manifest or record exists.
    """
    plan, key = None, plan_key(record.run_id)
    if candles.plan:
        objects.put(key=key, body=candles.plan, create=True)
        plan = {"key": key, "sha256": hashlib.sha256(candles.plan).hexdigest(), "bytes": len(candles.plan)}
    priced = {machine.name: machine for machine in offers.priced.machines}  # at the region's prices
    machines = [priced[name] for name in dict.fromkeys(rung.instance_type for rung in record.ladder)]
    profiles = profiles_of(job, machines, place_named(record.place))
    manifest = build_manifest(
        run_id=record.run_id,
        created_at=record.created_at,
        place=record.place,
        job=job,
        bundle=bundle,
        image_line=offers.image_line,
        image_id=offers.image_id,
        inputs=[item.pinned() for item in candles.inputs],
        plan=plan,
        encoder=pinned_encoder(job, objects),
        machines=machines,
        ladder=record.ladder,
        tuned=known_tunings(job, profiles, objects),
        gpu_profiles=own_profiles(job, profiles),
        ssh_key=ssh_key,
    )
    write_manifest(manifest, objects)
    begin_run(objects, record)
