"""What is observed of a run with several nodes."""

from __future__ import annotations

import json

import pytest

from tests.pieces import named
from tests.records import at, created, described, launched, piece
from tests.trainer.control.conftest import SHA256
from trainer.control.observe import left_behind, observe
from trainer.runs.receipt import models_of
from trainer.runs.start_file import StartFile, start_to_json
from trainer.runs.store import start_key

LEASE = {"at": "2026-11-20T12:00:00Z", "lease_until": "2026-11-20T12:01:00Z"}


@pytest.fixture
def nodes(make_cloud):
    """Return a cloud with a running attempt of three nodes, and its record; node 0 is i-2."""
    launch = created(instance_ids=("i-2", "i-1", "i-3"), kill_armed_at=at(6))
    pieces = tuple(piece(one, model=f"lstm-direction_{one}_1m") for one in ("BTC-USD", "ETH-USD"))
    cloud, record = make_cloud(state="running", attempts=launched(launch), num_nodes=3, pieces=pieces)
    return cloud, record


def beat(cloud, keys, second, **progress):
    cloud.clock = at(second)
    cloud.objects.write(keys.lease, json.dumps({**LEASE, "instance_id": keys.instance_id}).encode())
    told = {"phase": "train", "models_total": 2, **progress}
    cloud.objects.write(keys.progress, json.dumps(told).encode())


def test_each_node_is_read_by_itself_and_dated_by_s3(nodes):
    cloud, record = nodes
    head, second, third = record.nodes
    beat(cloud, head, 20, message="from the head")
    beat(cloud, second, 30, retries=2)
    cloud.objects.write(third.lease, b"[" * 200_000)
    cloud.objects.write(second.result, b"{}")
    seen = observe(cloud, record)
    assert [node.instance_id for node in seen.nodes] == ["i-2", "i-1", "i-3"]
    assert [node.heard_at for node in seen.nodes] == [at(20), at(30), None]
    assert seen.heartbeat is not None
    assert (seen.heartbeat.instance_id, seen.heartbeat.message, seen.heartbeat.retries) == (
        *("i-2", "from the head"),
        2,
    )
    assert seen.result is None  # the head has none
    spoiled = seen.nodes[1].result
    assert spoiled is not None and spoiled.state == "failed" and "can't be read" in spoiled.error["what"]


def test_a_node_reports_models_under_its_own_keys_alone(nodes):
    """One node's result can't name what lies in another's folder."""
    cloud, record = nodes
    model = {**named("BTC-USD"), "family": "lstm", "version_id": "v", "sha256": "ab" * 32}
    for number, owner in enumerate(record.nodes[:2]):
        key = f"{owner.models}lstm-direction_BTC-USD_1m.safetensors"
        told = {"state": "done", "models": [{**model, "key": key}]}
        cloud.objects.write(record.nodes[1].result, json.dumps(told).encode())
        result = observe(cloud, record).nodes[1].result
        assert result is not None and result.state == ("done" if number else "failed")


def test_what_a_lost_node_made_counts_by_what_s3_has(nodes):
    cloud, record = nodes
    head, second, _ = record.nodes
    key = f"{second.models}lstm-direction_ETH-USD_1m.safetensors"
    cloud.objects.write(key, b"weights", sha256=SHA256)
    cloud.objects.write(f"{second.models}other_1m.safetensors", b"weights", sha256=SHA256)
    assert observe(cloud, record).nodes[1].left == ()  # nobody asks before the head has ended
    missing = {**named("ETH-USD"), "reason": "the run ended before it was done"}
    said = {"state": "done", "failed": [missing]}
    cloud.objects.write(head.result, json.dumps(said).encode())
    seen = observe(cloud, record)
    assert seen.nodes[1].left == ("ETH-USD",)
    assert seen.result is not None and seen.result.state == "failed"  # nobody made BTC-USD
    assert [one["piece"] for one in seen.result.failed] == ["BTC-USD"]
    own = f"{head.models}lstm-direction_BTC-USD_1m.safetensors"
    made = {**named("BTC-USD"), "family": "lstm", "version_id": "v", "sha256": SHA256, "key": own}
    cloud.objects.write(head.result, json.dumps({**said, "models": [made]}).encode())
    seen = observe(cloud, record)
    assert seen.result is not None and (seen.result.state, seen.result.failed) == ("done", ())
    left = left_behind(cloud.objects, record, seen)
    assert [model["key"] for model in models_of(record, left)] == [own, key]


def test_what_an_earlier_attempt_finished_is_not_missed(nodes):
    cloud, record = nodes
    earlier = {**named("BTC-USD"), "family": "lstm", "target": "", "version_id": "v", "sha256": SHA256}
    earlier |= {
        "key": f"models/experiments/AROA1:i-0/{record.run_id}/0/lstm-direction_BTC-USD_1m.safetensors"
    }
    start = StartFile(run_id=record.run_id, attempt=1, finished=({**earlier, "metrics": {}},))
    cloud.objects.write(start_key(record.run_id, 1), start_to_json(start))
    keys = record.nodes[0]
    own = f"{keys.models}lstm-direction_ETH-USD_1m.safetensors"
    made = {**named("ETH-USD"), "family": "lstm", "version_id": "v", "sha256": SHA256, "key": own}
    cloud.objects.write(keys.result, json.dumps({"state": "done", "models": [made]}).encode())
    seen = observe(cloud, record).result
    assert seen is not None and (seen.state, seen.failed) == ("done", ())


def test_a_lost_nodes_boot_log_is_read(nodes):
    cloud, record = nodes
    for number, keys in enumerate(record.nodes):
        state = "terminated" if number == 1 else "running"
        cloud.machines[keys.instance_id] = described(state, instance_id=keys.instance_id, launched_at=at(0))
        cloud.objects.write(keys.bootstrap_log, f"bootstrap: log of {number}".encode())
    cloud.ended = {"i-1": (at(0), "Client.InstanceInitiatedShutdown")}
    cloud.clock = at(60)
    seen = observe(cloud, record)
    assert [node.boot_log for node in seen.nodes] == ["", "bootstrap: log of 1", ""]
