"""A run's node by hand: it writes what it made and a result with its own key, and powers off."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tests.trainer.conftest import weights
from trainer.aws.access import Access
from trainer.aws.objects import open_objects
from trainer.base.instants import utc_now
from trainer.rehearsal.account import EmbeddedAccount
from trainer.rehearsal.nodes import role_credentials
from trainer.runs.keys import NodeKeys
from trainer.runs.manifest import read_manifest
from trainer.runs.snapshots import SnapshotObject, StoredContent, snapshot_of, snapshot_to_json
from trainer.runs.store import manifest_key, read_record
from trainer.store.scores import ASKED_FILE, SCORES_FILE, asked_from, written_scores


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
    piece = record.pieces[0]
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


def finish_score(
    cloud: EmbeddedAccount, access: Access, bucket: str, run_id: str, losses: Mapping[str, Any]
) -> None:
    """Do as the node of a score run that found these losses, by side, of every piece."""
    objects = open_objects(access, bucket)
    record, _ = read_record(objects, run_id)
    (keys,) = record.nodes
    stored = objects.get(key=manifest_key(run_id))
    assert stored is not None
    asked = asked_from(read_manifest(stored.body).documents[ASKED_FILE])
    pieces = [
        {
            "piece": one.piece,
            "models": [{**each.identity, "losses": losses[each.side]} for each in one.models],
        }
        for one in asked.pieces
    ]
    node = own_access(cloud, access, keys.instance_id).client("s3")
    for model in (each for one in asked.pieces for each in one.models):  # its role reads both by version
        node.get_object(Bucket=bucket, Key=model.key, VersionId=model.version_id)
    node.put_object(Bucket=bucket, Key=f"{keys.folder}{SCORES_FILE}", Body=written_scores(pieces, {}))
    node.put_object(Bucket=bucket, Key=keys.result, Body=json.dumps({"state": "done"}).encode())
    _power_off(cloud, keys)


def losses_of(level: float, *, cells: int = 100, since: int = 0) -> dict[str, Any]:
    """Return losses of a model of this loss beside baselines of 0.7; they vary alike from cell to cell."""
    begins = [since + number * 86_400 for number in range(cells)]
    wave = [0.01 * ((number * 37) % 11 - 5) for number in range(cells)]
    own = [0.002 * ((number * 53) % 7 - 3) for number in range(cells)]
    model = [10 * (level + one + two) for one, two in zip(wave, own, strict=True)]
    others = {name: [10 * (0.7 + one) for one in wave] for name in ("base_rate", "persistence")}
    sums = {score: {"model": model, **others} for score in ("log_loss", "brier")}
    return {"begins": begins, "bars": [10] * cells, "sums": sums}


def _power_off(cloud: EmbeddedAccount, keys: NodeKeys) -> None:
    with cloud.lock:
        cloud.world.power_off(keys.instance_id, cloud.clock.now())
