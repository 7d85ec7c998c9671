"""Build and write manifest.json (`runs.manifest`), before the launch: the node reads nothing else about its
run.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from trainer.aws.objects import Conflict, Objects
from trainer.launch.bundle import BundleName
from trainer.launch.preflight import Offers
from trainer.launch.tasks import Task
from trainer.machines.instances import InstanceType
from trainer.machines.scaling import link_of
from trainer.runs.attempts import Rung
from trainer.runs.manifest import ExpectedMachine, Manifest
from trainer.runs.record import RunRecord
from trainer.runs.record_json import to_json
from trainer.runs.store import manifest_key, record_key

# age of a manifest without a record whose writer has ended: control is called for ten
LEFT_BEHIND = timedelta(minutes=15)


def build_manifest(
    record: RunRecord, task: Task, bundle: BundleName, *, offers: Offers | None = None, ssh_key: str = ""
) -> Manifest:
    """Return the manifest of a run. Without `offers` it is one on the caller's own machine."""
    used = {rung.instance_type for rung in record.ladder} if task.command.devices != "none" else ()
    return Manifest(
        run_id=record.run_id,
        created_at=record.created_at,
        place=record.place,
        job=task.job.to_dict(),
        code={"key": bundle.key, "sha256": bundle.sha256},
        lock_sha256=bundle.lock_sha256,
        own_files={table: home.manifest_entry() for table, home in task.job.own_files.items()},
        image={"line": offers.image_line if offers else "", "id": offers.image_id if offers else ""},
        seeds=tuple(sorted({piece.seed for piece in record.pieces})),
        command=task.command,
        inputs=task.inputs,
        documents=dict(task.documents),
        pieces=task.pieces,
        machines={
            machine.name: _expected(machine, record.ladder)
            for machine in (offers.priced.machines if offers else ())  # at the region's prices
            if machine.name in used
        },
        ssh_key=ssh_key,
    )


def _expected(machine: InstanceType, ladder: Iterable[Rung]) -> ExpectedMachine:
    return ExpectedMachine(
        gpu_count=machine.num_workers if machine.gpus else 0,
        cores=0 if machine.gpus else machine.num_trainers,
        gpu_model=machine.gpu_model,
        link=link_of(machine).name,
        bus_gb_per_s=round(link_of(machine).bus_gb_per_s, 1),
        usd_per_hour=machine.price_usd_per_hour,
        spot_usd_per_hour={
            rung.availability_zone: rung.price_usd_per_hour
            for rung in ladder
            if (rung.instance_type, rung.market) == (machine.name, "spot")
        },
        lost_seconds={
            rung.market: rung.lost_seconds for rung in ladder if rung.instance_type == machine.name
        },
        smoke_seconds=machine.boot.smoke_seconds,
    )


def write_manifest(manifest: Manifest, objects: Objects) -> None:
    """Create the manifest of a run. Raises Conflict if it exists.

    It never changes, with one exception: control registers the same run again if an earlier call was killed
    before it wrote the record.
    """
    key, body = manifest_key(manifest.run_id), to_json(manifest)
    try:
        objects.put(key=key, body=body, create=True)
    except Conflict:
        there = objects.head(key=key)
        if there is None or manifest.created_at < there.modified_at + LEFT_BEHIND:
            raise
        if objects.head(key=record_key(manifest.run_id)) is not None:
            raise
        objects.put(key=key, body=body, if_match=there.etag)
