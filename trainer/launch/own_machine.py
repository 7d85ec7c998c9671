"""A run on the caller's own machine: its record and its manifest. Nothing is priced, and nothing is
launched.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from trainer.aws.place import HERE
from trainer.aws.stack_outputs import StackOutputs
from trainer.job.job import Job
from trainer.job.pieces import pieces_of
from trainer.job.script import KIND
from trainer.launch.bundle import BundleName
from trainer.launch.encoder import pinned_encoder
from trainer.launch.inputs import ChosenCandles
from trainer.launch.manifest import FORMAT, build_manifest, write_manifest
from trainer.launch.start import recorded
from trainer.machines.chips import user_tables
from trainer.machines.planner import LONGEST_DEADLINE, workload
from trainer.runs.index import begin_run
from trainer.runs.record import HERE_FORMAT, Attempt, RunRecord, iso, new_run_id
from trainer.runs.store import Objects, plan_key


@dataclass(frozen=True, kw_only=True)
class ScriptInputs:
    """Inputs of a script's run besides its job: sha256 of its files by path, and the entries of its data."""

    files: Mapping[str, str]
    data: Sequence[Mapping[str, Any]]  # entries of the manifest's inputs, with their paths
    sha256: str  # of all that its duration depends on


def here_record(
    job: Job,
    bundle: BundleName,
    outputs: StackOutputs,
    *,
    user_id: str,
    host: str,
    bars: Mapping[str, int],
    now: datetime,
    preflight_at: datetime,
) -> RunRecord:
    """Return the record of a run that begins now, in state "running". Without a `max_duration` it has the
    longest default.

    `bars` are the candles of a training, by symbol; a script has none.
    """
    pieces = pieces_of(job, (), timeframe="") if job.is_script else workload(job, bars).pieces
    longest = job.machine.max_duration_or(LONGEST_DEADLINE)
    named = job.machine.max_duration and "machine.max_duration" in job.given
    return RunRecord(
        format=HERE_FORMAT,
        run_id=new_run_id(job.name, now),
        work="script" if job.is_script else "train",
        project=outputs.project,
        stack=outputs.stack,
        owner=outputs.owner,
        place=HERE.name,
        bucket=outputs.bucket,
        user_id=user_id,
        host=host,
        job=job.to_dict(),
        pieces=recorded(pieces),
        ladder=(),
        bundle_key=bundle.key,
        bundle_sha256=bundle.sha256,
        budget_usd=0.0,
        estimated_usd=0.0,
        preflight_at=preflight_at,
        created_at=now,
        deadline=(now + longest).replace(microsecond=0),
        deadline_cause="max_duration" if named else "default_duration",
        state="running",
        attempts=(Attempt(number=1, created_at=now),),
    )


def here_manifest(
    record: RunRecord, job: Job, bundle: BundleName, inputs: ScriptInputs | ChosenCandles, objects: Objects
) -> dict[str, Any]:
    """Return the manifest, and write the plan of the bars that it pins. The agent itself finds the machine's
    devices.
    """
    if isinstance(inputs, ScriptInputs):
        return {
            "format": FORMAT,
            "work": KIND,
            **_common(record, bundle),
            "job": job.without_desk().to_dict(),
            "script_files": dict(inputs.files),
            "script_sha256": inputs.sha256,
            "inputs": [dict(entry) for entry in inputs.data],
            "pieces": [{"model": piece.model, **piece.identity, "estimate": 1.0} for piece in record.pieces],
            "secrets": {},
            "ssh_key": "",
            "instance_types": {},
        }
    plan, key = None, plan_key(record.run_id)
    if inputs.plan:
        objects.put(key=key, body=inputs.plan, create=True)
        plan = {"key": key, "sha256": hashlib.sha256(inputs.plan).hexdigest(), "bytes": len(inputs.plan)}
    return build_manifest(
        run_id=record.run_id,
        created_at=record.created_at,
        place=record.place,
        job=job,
        bundle=bundle,
        image_line="",
        image_id="",
        inputs=[item.pinned() for item in inputs.inputs],
        plan=plan,
        encoder=pinned_encoder(job, objects),
        machines=(),
        ladder=(),
        tuned={},
        gpu_profiles=user_tables(),
        ssh_key="",
    )


def register_here(record: RunRecord, manifest: dict[str, Any], objects: Objects) -> None:
    """Write manifest, entry in the index and record."""
    write_manifest(manifest, objects)
    begin_run(objects, record)


def work_sha256(
    job: Job, bundle: BundleName, bucket: str, inputs: Iterable[Mapping[str, Any]], plan: bytes
) -> str:
    """Return the hash by which a run is resumed: of code, settings except the machine's, data, plan and
    bucket.
    """
    settings = {table: values for table, values in job.to_dict().items() if table != "machine"}
    read = sorted((str(entry.get("path", entry["key"])), str(entry["sha256"])) for entry in inputs)
    known = (settings, bundle.sha256, bucket, read, hashlib.sha256(plan).hexdigest())
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()


def _common(record: RunRecord, bundle: BundleName) -> dict[str, Any]:
    return {
        "run_id": record.run_id,
        "created_at": iso(record.created_at),
        "place": record.place,
        "code": {"key": bundle.key, "sha256": bundle.sha256},
        "lock_sha256": bundle.lock_sha256,
        "image": {"line": "", "id": ""},
    }
