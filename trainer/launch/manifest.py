"""manifest.json: pins everything that a run depends on: code, lock, job, inputs by version and hash, plan,
image.

It also has data that speeds up a training and changes no model: measured settings of the planned chips, the
user's profiles. Written before the launch; the node reads nothing else about its run. Two runs of one
manifest are comparable.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from trainer.job.job import Job
from trainer.launch.bundle import BundleName
from trainer.machines.instances import InstanceType
from trainer.machines.links import link_of
from trainer.runs.record import Rung, from_iso, iso
from trainer.runs.store import Conflict, Objects, manifest_key, record_key

# 3, before 2026-11-22: no `program`; 2, before that day, too: no `plan`; 1, before jobs had tables: `job` was
# flat
FORMAT = 4
LEFT_BEHIND = timedelta(
    minutes=15
)  # age of a manifest without a record whose writer has ended: control is called for ten
# The command that a node runs. The agent replaces the variables (`trainer.node.trainer_process`): files,
# folders, devices.
PROGRAM = (
    *(
        "$PYTHON",
        "-m",
        "trainer.train",
        "--job",
        "$JOB",
        "--data",
        "$DATA",
        "--out",
        "$OUT",
        "--events",
        "$EVENTS",
    ),
    *("--workers", "$WORKERS", "--device", "$DEVICE", "--machine", "$MACHINE"),
)


def build_manifest(
    *,
    run_id: str,
    created_at: datetime,
    place: str,
    job: Job,
    bundle: BundleName,
    image_line: str,
    image_id: str,
    inputs: Sequence[dict[str, Any]],
    plan: Mapping[str, Any] | None,
    encoder: Mapping[str, Any] | None,
    machines: Iterable[InstanceType],
    ladder: Sequence[Rung],
    tuned: Mapping[str, Any],
    gpu_profiles: Mapping[str, Any],
    ssh_key: str,
) -> dict[str, Any]:
    """Return the manifest. `job` has its symbols and timeframe; the path of its candles is left out."""
    return {
        "format": FORMAT,
        "run_id": run_id,
        "created_at": iso(created_at),
        "place": place,
        "job": job.without_desk().to_dict(),
        "code": {"key": bundle.key, "sha256": bundle.sha256},
        "lock_sha256": bundle.lock_sha256,
        "own_files": {table: home.manifest_entry() for table, home in job.own_files.items()},
        "image": {"line": image_line, "id": image_id},
        "seeds": list(range(job.train.seed, job.train.seed + job.train.seeds)),
        "inputs": [
            {name: entry[name] for name in ("key", "version_id", "sha256", "bytes")}
            for entry in sorted(inputs, key=lambda entry: str(entry["key"]))
        ],
        "plan": dict(plan) if plan else None,  # without one, the node makes it
        "encoder": dict(encoder) if encoder else None,  # that the job's models start from
        "program": [*PROGRAM, *(("--plan", "$PLAN") if plan else ())],
        "instance_types": {
            machine.name: {
                "gpu_count": machine.num_workers,
                "gpu_model": machine.gpu_model,
                "gpu_memory_gib": machine.gpu_memory_gib,
                "link": link_of(machine).name,
                "bus_gb_per_s": round(link_of(machine).bus_gb_per_s, 1),
                # on demand, in the stack's region; None: not known
                "usd_per_hour": machine.price_usd_per_hour,
                "spot_usd_per_hour": {
                    rung.availability_zone: rung.price_usd_per_hour
                    for rung in ladder
                    if (rung.instance_type, rung.market) == (machine.name, "spot")
                },
                "smoke_seconds": machine.boot.smoke_seconds,
            }
            for machine in machines
        },
        "tuned": dict(tuned),
        "gpu_profiles": dict(gpu_profiles),
        "ssh_key": ssh_key,  # the run's public key, which may sign in; empty: none
    }


def write_manifest(manifest: dict[str, Any], objects: Objects) -> None:
    """Create the manifest of a run. Raises Conflict if it exists.

    It never changes, with one exception: control registers the same run again if an earlier call was killed
    before it wrote the record.
    """
    key, body = manifest_key(manifest["run_id"]), json.dumps(manifest, indent=1).encode()
    try:
        objects.put(key=key, body=body, create=True)
    except Conflict:
        there = objects.head(key=key)
        if there is None or from_iso(manifest["created_at"]) < there.modified_at + LEFT_BEHIND:
            raise
        if objects.head(key=record_key(manifest["run_id"])) is not None:
            raise
        objects.put(key=key, body=body, if_match=there.etag)
