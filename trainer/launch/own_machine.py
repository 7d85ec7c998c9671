"""A run on the caller's own machine: its record and its work. Nothing is priced, and nothing is
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
from trainer.launch.inputs import ChosenCandles
from trainer.launch.start import recorded
from trainer.launch.tasks import Task, script_task, training_task
from trainer.machines.planner import LONGEST_DEADLINE, workload
from trainer.runs.record import HERE_FORMAT, Attempt, RunRecord, new_run_id
from trainer.runs.store import Objects


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
        work=KIND if job.is_script else "train",
        leaves="files" if job.is_script else "models",
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


def here_task(record: RunRecord, job: Job, inputs: ScriptInputs | ChosenCandles, objects: Objects) -> Task:
    """Return the work of a run on this machine; the agent itself finds its devices."""
    if isinstance(inputs, ScriptInputs):
        return script_task(record, job, inputs.files, inputs.data, sha256=inputs.sha256, devices="found")
    return training_task(record, job, inputs, objects)


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
