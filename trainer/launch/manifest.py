"""manifest.json pins what a run depends on: code, lock, job, inputs by version and hash, image, seeds. Written once, before the launch.

The node reads nothing else about its run. Two runs of one manifest are comparable.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from trainer.access import Access, aws_error
from trainer.config import Job
from trainer.cost.instances import InstanceType
from trainer.launch.bundle import Bundle
from trainer.runs.record import iso

FORMAT = 1


def manifest_key(run_id: str) -> str:
    """Return where a run's manifest lies, by convention: the node knows only its run id."""
    return f"runs/{run_id}/manifest.json"


def build_manifest(
    *,
    run_id: str,
    created_at: datetime,
    rehearsal: bool,
    job: Job,
    bundle: Bundle,
    image_line: str,
    image_id: str,
    inputs: Sequence[dict[str, Any]],
    machines: Iterable[InstanceType],
) -> dict[str, Any]:
    """Return the manifest. `job` has its symbols and timeframe filled in; its `data` is a path of the desk and left out."""
    return {
        "format": FORMAT,
        "run_id": run_id,
        "created_at": iso(created_at),
        "rehearsal": rehearsal,
        "job": {**job.to_dict(), "data": ""},
        "code": {"key": bundle.key, "sha256": bundle.sha256},
        "lock_sha256": bundle.lock_sha256,
        "image": {"line": image_line, "id": image_id},
        "seeds": [job.seed],
        "inputs": [
            {name: entry[name] for name in ("key", "version_id", "sha256", "bytes")}
            for entry in sorted(inputs, key=lambda entry: str(entry["key"]))
        ],
        "instance_types": {
            machine.name: {
                "gpu_count": machine.num_workers,
                "gpu_model": machine.gpu_model,
                "gpu_memory_gib": machine.gpu_memory_gib,
            }
            for machine in machines
        },
    }


def write_manifest(manifest: dict[str, Any], access: Access, *, bucket: str) -> None:
    """Create the manifest of a run; it never changes. Raises ours for a failed call, an existing one included."""
    from botocore.exceptions import BotoCoreError, ClientError  # late: planning needs no AWS library

    key = manifest_key(manifest["run_id"])
    body = json.dumps(manifest, indent=1).encode()
    try:
        access.client("s3").put_object(Bucket=bucket, Key=key, Body=body, IfNoneMatch="*", ContentType="application/json")
    except (BotoCoreError, ClientError) as error:
        raise aws_error(error, f"cannot write s3://{bucket}/{key}") from error
