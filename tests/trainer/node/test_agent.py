"""The agent from bootstrap to result, against the embedded AWS, with a stand-in for the trainer."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from tests.iam import assert_allowed_is_needed
from tests.jobs import job_of
from tests.pieces import named
from tests.trainer.node.conftest import model_done, started
from trainer.base.instants import from_iso
from trainer.node.uplink import Uplink
from trainer.runs.lease import MOST_LEASE_BYTES

RUN = "20261120-235912-test-k3v9"
NODE = f"attempts/AROA1:i-1/{RUN}/1/0/"
MODELS = f"models/experiments/AROA1:i-1/{RUN}/1/"


def test_a_run_ends_done_with_every_model_in_s3(machine: Any) -> None:
    machine.file_system, machine.plan = "fs-01:fsap-02", b'{"a": "plan"}'
    machine.s3.put_object(Bucket=machine.bucket, Key=f"runs/{RUN}/plan.json", Body=machine.plan)
    look = "print('plan:', options.plan.read_text(), flush=True)\n"
    machine.trainer = machine.trainer.replace("time.sleep(script", look + "time.sleep(script")
    machine.start()
    machine.wait_until_off()
    result = machine.result()
    assert (result["state"], result["error"]) == ("done", None)
    assert result["exit_code"] == machine.exit_code() == 0
    assert [model["piece"] for model in result["models"]] == ["A", "B"]
    for model in result["models"]:
        stored = machine.s3.get_object(Bucket=machine.bucket, Key=model["key"], VersionId=model["version_id"])
        sha256 = hashlib.sha256(stored["Body"].read()).hexdigest()
        assert sha256 == model["sha256"] == stored["Metadata"]["sha256"]
    assert machine.keys(MODELS) == [
        f"{MODELS}lstm_{symbol}_1m.{kind}" for symbol in ("A", "B") for kind in ("json", "safetensors")
    ]
    assert list(result["phases"]) == ["boot", "stage", "train", "upload", "end"]
    assert f"{NODE}plan.json" not in machine.keys(NODE)  # it is in the bucket already
    began = [from_iso(at) for at in result["phases"].values()]
    assert began == sorted(began)
    note = "GPUs are CPU processes in a rehearsal"
    assert result["devices"] == {"expected": 4, "found": 4, "kind": "cpu", "note": note}
    assert list(result["boot"]) == ["code", "environment", "agent", "baked", "import", "smoke"]
    assert result["boot"]["baked"] is False
    assert result["boot"]["environment"] > 0 and sum(result["boot"].values()) < 600
    assert result["data"] == {"bars": 7, "synthetic": True}
    inputs = result["inputs"]
    assert (inputs["s3_files"], inputs["cache_files"]) == (2, 0)  # there is no such file system
    assert result["inputs"]["cache_failed"].startswith("EFS fs-01 could not be mounted: ")
    assert result["python_packages"] == "the desk's .venv"
    progress = json.loads(machine.read(f"{NODE}progress.json"))
    assert (progress["phase"], progress["models_done"], progress["models_total"]) == ("end", 2, 2)
    lease = machine.read(f"live/AROA1:i-1/{RUN}/1/0.json")
    assert len(lease) <= MOST_LEASE_BYTES and list(json.loads(lease))[-2:] == ["at", "lease_until"]
    log = b"".join(machine.read(key) for key in machine.keys(f"{NODE}log/")).decode()
    assert (
        "the trainer runs on 4 cpu" in log
        and 'plan: {"a": "plan"}' in log
        and "inputs come only from S3: EFS fs-01" in log
    )
    assert (
        f"code: {machine.sandbox}/opt/mayfly/code/trainer/__init__.py" in log
    )  # from the bundle, not the checkout
    events = b"".join(machine.read(key) for key in machine.keys(f"{NODE}metrics/")).splitlines()
    assert [json.loads(line)["event"] for line in events] == ["started", "model_done", "model_done", "ended"]

    # Its role allows what it called, and no more. When the answer to an upload was lost, it finds its own
    # model there.
    model = result["models"][0]
    path = machine.sandbox / "opt/mayfly/work/command/out" / model["key"].rpartition("/")[2]
    uplink, size = Uplink(machine.own_access, machine.bucket), path.stat().st_size
    with path.open("rb") as body:
        again = uplink.put_file(body, model["key"], model["sha256"], size, once=True)
    assert again == model["version_id"]
    decided = [(asked, decision) for who, asked, decision in machine.cloud.decisions if who.kind == "NODE"]
    policy = machine.access.client("iam").get_role_policy(RoleName="node", PolicyName="own")["PolicyDocument"]
    assert_allowed_is_needed(decided, policy, {})


def test_a_trainer_gets_the_launchs_facts_and_its_files_go(machine: Any) -> None:
    profiles = {"mine": {"memory_gib": 20}}
    machine.known = {"documents": {"gpu_profiles.json": profiles}}
    encoder, sha256 = b"weights", hashlib.sha256(b"weights").hexdigest()
    machine.s3.put_object(Bucket=machine.bucket, Key=f"raw/.files/{sha256}", Body=encoder)
    machine.job = job_of(model="tcn", encoder="one.safetensors", encoder_sha256=sha256)
    told = """
import os
profiles, model = pathlib.Path(os.environ["MAYFLY_PROFILES"]), json.loads(options.job.read_text())["model"]
print("profiles:", profiles.read_text(), flush=True)
print("encoder:", (options.job.parent / model["encoder"]).read_text(), model["encoder_sha256"], flush=True)
(options.out / "trace").mkdir()
(options.out / "trace/worker-0.json.gz").write_bytes(b"steps")
(options.out / "plan.json").write_text("made here")
(options.out / "training_results.json").write_bytes(options.machine.read_bytes())
"""
    machine.trainer = machine.trainer.replace("time.sleep(script", f"{told}time.sleep(script")
    machine.script["events"][:0] = [{"event": "tuning", "profile": "cpu", "seconds": 3}, {"event": "tuned"}]
    machine.start()
    machine.wait_until_off()
    assert machine.result()["state"] == "done"
    log = b"".join(machine.read(key) for key in machine.keys(f"{NODE}log/")).decode()
    assert f"profiles: {json.dumps(profiles)}" in log
    assert f"encoder: weights {sha256}" in log
    assert machine.read(f"{NODE}plan.json") == b"made here"
    assert machine.read(f"{NODE}trace/worker-0.json.gz") == b"steps"
    results = json.loads(machine.read(f"{NODE}training_results.json"))
    assert (results["instance_type"], results["gpu_count"]) == ("p3.8xlarge", 4)
    assert results["paid_seconds"] > 0


@pytest.mark.nightly  # a stop by S3: test_uplink.py; of a node: the next test
def test_stop_json_ends_the_trainer_and_keeps_finished_models(machine: Any) -> None:
    machine.script |= {"sleep": 600, "events": [started("A", "B"), model_done("A")]}
    machine.start()
    machine.wait_for(lambda: f"{MODELS}lstm_A_1m.safetensors" in machine.keys(MODELS))
    machine.s3.put_object(Bucket=machine.bucket, Key=f"runs/{RUN}/attempts/1/stop.json", Body=b"{}")
    machine.wait_until_off()
    result = machine.result()
    assert (result["state"], result["exit_code"]) == ("stopped", 130)
    assert [model["piece"] for model in result["models"]] == ["A"]
    assert result["failed"] == [{**named("B"), "reason": "stopped before it was done"}]


def test_a_terminated_node_reports_within_the_grace(machine: Any) -> None:
    machine.script |= {"sleep": 600, "events": [started("A", "B"), model_done("A")]}
    node = machine.start()
    machine.wait_for(lambda: f"{MODELS}lstm_A_1m.safetensors" in machine.keys(MODELS))
    node.terminate(grace_seconds=500)
    assert machine.result()["state"] == "stopped"
    log = b"".join(machine.read(key) for key in machine.keys(f"{NODE}log/")).decode()
    assert "the trainer was stopped" in log and "models failed" not in log
