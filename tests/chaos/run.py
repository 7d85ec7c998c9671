"""The run that a schedule is about: its record, what its command makes, and the closed run that it may continue."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from tests.chaos.aws import BUCKET, Bucket
from tests.chaos.schedule import BOOT_SECONDS, START, Schedule
from tests.pieces import named
from trainer.runs.attempts import Attempt, Launch, Rung
from trainer.runs.keys import NodeKeys
from trainer.runs.observation import DESCRIBED
from trainer.runs.record import InstanceSeen, Leaves, RunPiece, RunRecord
from trainer.runs.record_json import to_json
from trainer.runs.snapshots import SnapshotObject, StoredContent, snapshot_of, snapshot_to_json
from trainer.runs.start_file import StartFile, start_to_json
from trainer.runs.store import record_key, start_key

RUN, PARENT = "20261120-120000-crypto-k3v9", "20261119-120000-crypto-aaaa"
ROLE = "AROA1"
PRICES = {"on_demand": 5.0, "spot": 2.0}  # of an hour
PARENT_SECONDS = {"BTC-USD": 90.0, "ETH-USD": 10.0}  # of work in the parent's checkpoint


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a command does: `tasks` one after the other, each of which is a piece of the run unless it leaves
    candles.
    """

    tasks: tuple[str, ...]
    leaves: Leaves
    shards: int = 1  # files of one checkpoint, each with its rank's share; 0: it keeps none

    @property
    def pieces(self) -> tuple[RunPiece, ...]:
        if self.leaves == "candles":
            return ()
        return tuple(
            RunPiece(model=model_name(one), **{**named(one), "series": (one,)}) for one in self.tasks
        )


WORKS = {
    "train": Work(tasks=("BTC-USD", "ETH-USD"), leaves="models"),
    "ranks": Work(tasks=("BTC-USD",), leaves="models", shards=3),
    "script": Work(tasks=("main",), leaves="files"),
    "score": Work(tasks=("main",), leaves="files", shards=0),
    "prepare": Work(tasks=("refresh",), leaves="candles", shards=0),
}


def model_name(task: str) -> str:
    return f"lstm_{task}_1m"


def record_of(schedule: Schedule) -> RunRecord:
    """Return the record of the run that a schedule is about."""
    work = WORKS[schedule.work]
    ladder = tuple(
        Rung(
            instance_type="g5.12xlarge",
            availability_zone=f"us-east-1{zone}",
            subnet_id=f"subnet-us-east-1{zone}",
            market=market,
            price_usd_per_hour=PRICES[market],
            on_demand_usd_per_hour=5.0,
            launch_template_id="lt-1",
            image_id="ami-1",
            vcpus=48,
            quota_code="",
            boot_seconds=BOOT_SECONDS,
        )
        for zone, market in zip("abc", schedule.markets, strict=False)
    )
    return RunRecord(
        run_id=RUN, project="mayfly", stack="dev", owner="someone", place="account", bucket=BUCKET,
        instance_role_id=ROLE, job={"name": "crypto", "data": {"set": "coins", "stale": "train", "symbols": list(work.tasks), "timeframe": "1m"}},
        pieces=work.pieces, ladder=ladder, bundle_key="code/abc.whl", bundle_sha256="abc",
        budget_usd=schedule.budget_usd, estimated_usd=0.5, preflight_at=START - timedelta(seconds=5),
        created_at=START, deadline=START + timedelta(minutes=schedule.minutes), deadline_cause="max_duration",
        driver=schedule.driver, work="train" if work.leaves == "models" else schedule.work, leaves=work.leaves,
        queue_seconds=schedule.queue_minutes * 60, parent=PARENT if schedule.parent else "",
        parent_counts=schedule.parent, num_nodes=schedule.cluster, one_model=schedule.one_model,
    )  # type: ignore[arg-type]  # fmt: skip


def leave_parent(bucket: Bucket, schedule: Schedule) -> None:
    """Write what a run left that reached its deadline an hour ago: its first model, and a checkpoint."""
    at, name = START - timedelta(hours=1), "i-0parent0"
    launch = Launch(
        rung=0, token="t", deadline=at, deadline_cause="max_duration", intended_at=at - timedelta(hours=1),
        called_at=at - timedelta(hours=1), calls=1, outcome="created", instance_ids=(name,),
    )  # fmt: skip
    seen = InstanceSeen(
        instance_id=name, attempt=1, instance_type="g5.12xlarge", market="on_demand", state="terminated",
        availability_zone="us-east-1a", launched_at=launch.intended_at, terminated_at=at, proof=DESCRIBED,
    )  # fmt: skip
    attempt = Attempt(number=1, launches=(launch,), created_at=launch.intended_at)
    record = replace(
        record_of(replace(schedule, parent="")), run_id=PARENT, created_at=launch.intended_at,
        preflight_at=launch.intended_at, deadline=at, state="closed", outcome="expired", attempts=(attempt,),
        error={"code": 104, "what": "the run reached its deadline", "why": "", "do": ""}, instances=(seen,),
        ending_at=at, closed_at=at,
    )  # fmt: skip
    keys = NodeKeys(role_id=ROLE, instance_id=name, run_id=PARENT, attempt=1)
    start = StartFile(run_id=PARENT, attempt=1, instances=(name,))
    bucket.write(record_key(PARENT), to_json(record), at)
    bucket.write(start_key(PARENT, 1), start_to_json(start), at)
    sha256 = hashlib.sha256(b"by the parent").hexdigest()
    bucket.write(parent_model(), b"weights", at, metadata={"sha256": sha256})
    body = checkpoint(0, PARENT_SECONDS)
    sha256 = hashlib.sha256(body).hexdigest()
    data = bucket.write(keys.snapshot_data(1), body, at, metadata={"sha256": sha256})
    stored = SnapshotObject(sha256=sha256, size=len(body), version_id=data.version_id, slot=1)
    files, parts = {"rank-0.json": (sha256, len(body))}, {sha256: StoredContent(object=stored, offset=0)}
    snapshot = snapshot_of(files, parts, run_id=PARENT, attempt=1, number=1, at=at)
    bucket.write(keys.snapshot(1), snapshot_to_json(snapshot), at)


def parent_model() -> str:
    """Return the key of the model that the parent finished."""
    keys = NodeKeys(role_id=ROLE, instance_id="i-0parent0", run_id=PARENT, attempt=1)
    return f"{keys.models}{model_name(WORKS['train'].tasks[0])}.safetensors"


def checkpoint(rank: int, done: dict[str, float]) -> bytes:
    """Return a rank's file of a checkpoint: the seconds of each task that are done."""
    return json.dumps(
        {"rank": rank, "done": {task: round(value, 3) for task, value in done.items()}}
    ).encode()


def done_in(bodies: list[bytes]) -> dict[str, float]:
    """Return what the files of a checkpoint hold of all ranks."""
    ranks: list[dict[str, Any]] = [json.loads(body)["done"] for body in bodies]
    tasks = {task for rank in ranks for task in rank}
    return {task: min(rank.get(task, 0.0) for rank in ranks) for task in tasks}


def done_of_each(bodies: list[bytes]) -> dict[str, float]:
    """Return what the files of checkpoints hold, of machines that each had some of the tasks."""
    found: dict[str, float] = {}
    for rank in (json.loads(body)["done"] for body in bodies):
        found |= {task: min(found.get(task, seconds), seconds) for task, seconds in rank.items()}
    return found
