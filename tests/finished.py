"""A run's node by hand: it writes what it made and a result with its own key, and powers off."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tests.jobs import MEASURED
from tests.trainer.conftest import weights
from trainer.aws.access import Access
from trainer.aws.place import place_named
from trainer.job.job import job_from
from trainer.machines.instances import instance_type
from trainer.machines.measurements import shape_of
from trainer.machines.planner import profile_on
from trainer.rehearsal.account import EmbeddedAccount
from trainer.rehearsal.nodes import role_credentials
from trainer.runs.keys import NodeKeys
from trainer.runs.record import utc_now
from trainer.runs.snapshots import SnapshotObject, StoredContent, snapshot_of, snapshot_to_json
from trainer.runs.store import open_objects, read_record


def own_access(cloud: EmbeddedAccount, access: Access, instance_id: str) -> Access:
    """Return the access of an instance: what its metadata service would lend it."""
    lent = role_credentials(cloud, cloud.world.instances[instance_id])
    assert lent is not None
    return replace(access, access_key=lent.access_key, secret_key=lent.secret_key)


def finish(
    cloud: EmbeddedAccount,
    access: Access,
    bucket: str,
    run_id: str,
    *,
    metrics: Mapping[str, Any] | None = None,
    tail: bytes = b"",
) -> NodeKeys:
    """Do as a run's node that trained its first model; return its keys. `tail` makes the file another one."""
    record, _ = read_record(open_objects(access, bucket), run_id)
    (keys,) = record.nodes
    piece, job, machine = (
        record.pieces[0],
        job_from(record.job),
        instance_type(record.ladder[0].instance_type),
    )
    name = piece.model
    body = weights(name) + tail
    node = own_access(cloud, access, keys.instance_id).client("s3")
    model, sha256 = f"{keys.models}{name}.safetensors", hashlib.sha256(body).hexdigest()
    put = node.put_object(Bucket=bucket, Key=model, Body=body, Metadata={"sha256": sha256})
    entry = {
        **piece.identity,
        "family": "lstm",
        "key": model,
        "version_id": put["VersionId"],
        "sha256": sha256,
    }
    result = {
        "state": "done",
        "models": [{**entry, "metrics": metrics} if metrics else entry],
        "tuned": {profile_on(machine, place_named(record.place)).key: {shape_of(job): MEASURED}},
    }
    node.put_object(Bucket=bucket, Key=keys.result, Body=json.dumps(result).encode())
    node.put_object(Bucket=bucket, Key=f"{keys.log}000001.log", Body=b"trained\n")
    _power_off(cloud, keys)
    return keys


def save(cloud: EmbeddedAccount, access: Access, bucket: str, run_id: str) -> NodeKeys:
    """Do as a run's node whose command keeps one checkpoint; return its keys."""
    record, _ = read_record(open_objects(access, bucket), run_id)
    (keys,) = record.nodes
    node, body = own_access(cloud, access, keys.instance_id).client("s3"), b"weights after an hour"
    sha256, size = hashlib.sha256(body).hexdigest(), len(body)
    data = {"Key": keys.snapshot_data(1), "Metadata": {"sha256": sha256}}
    put = node.put_object(Bucket=bucket, Body=body, **data)
    there = StoredContent(
        object=SnapshotObject(sha256=sha256, size=size, version_id=put["VersionId"], slot=1), offset=0
    )
    about = {"run_id": run_id, "attempt": keys.attempt, "number": 1, "at": utc_now()}
    made = snapshot_of({"a.pt": (sha256, size)}, {sha256: there}, **about)
    node.put_object(Bucket=bucket, Key=keys.snapshot(1), Body=snapshot_to_json(made))
    return keys


def finish_prepare(
    cloud: EmbeddedAccount, access: Access, bucket: str, run_id: str, *, file: str, body: bytes
) -> None:
    """Do as a prepare run's node whose script brought one file, with bars of BTC-USD of the week before
    2026-11-22.
    """
    record, _ = read_record(open_objects(access, bucket), run_id)
    (keys,) = record.nodes
    node, sha256 = own_access(cloud, access, keys.instance_id).client("s3"), hashlib.sha256(body).hexdigest()
    holds = [
        {"symbol": "BTC-USD", "bars": 10_080, "first": "2026-11-15T00:00:00Z", "last": "2026-11-21T23:59:00Z"}
    ]
    index = {"timeframe": "1m", "synthetic": False, "further": [], "holds": holds}
    node.put_object(Bucket=bucket, Key=f"{keys.files}{file}", Body=body, ChecksumAlgorithm="SHA256")
    node.put_object(Bucket=bucket, Key=f"{keys.index}{sha256}.json", Body=json.dumps(index).encode())
    files = [{"file": file, "sha256": sha256, "bytes": len(body), "added": True}]
    node.put_object(
        Bucket=bucket, Key=keys.result, Body=json.dumps({"state": "done", "files": files}).encode()
    )
    _power_off(cloud, keys)


def _power_off(cloud: EmbeddedAccount, keys: NodeKeys) -> None:
    with cloud.lock:
        cloud.world.power_off(keys.instance_id, cloud.clock.now())
