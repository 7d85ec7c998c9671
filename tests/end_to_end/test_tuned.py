"""A run compares strategies before it trains, and the user's profiles go along. All of it by somebody who has
the stack's launcher policy and no other right.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.desk import QUICK, Desk
from tests.jobs import sets
from trainer.rehearsal import client
from trainer.rehearsal.client import ACCOUNT, lease_server
from trainer.store.card import read_card

TUNED = ("--epochs", "1", "--symbols", "AAA", *sets("expert.tune=always", "machine.gpu_profile=my_v100"))
PROFILES = "[cpu]\nmodels_per_gpu = 1\n\n[my_v100]\nmemory_gib = 15.5\n\n[workshop]\nmemory_gib = 48\n"


@pytest.fixture
def launcher(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """The desk of an IAM user of the embedded AWS whom an administrator gave the launcher policy alone."""
    for name, value in desk.shared.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(client, "SERVER", "tests.aws.server")  # the one that checks permissions
    server = lease_server(desk.home)
    server.apply_program()
    iam = server.access().client("iam")
    iam.create_user(UserName="launcher")
    policy = f"arn:aws:iam::{ACCOUNT}:policy/mayfly-dev-us-east-1-launcher"
    iam.attach_user_policy(UserName="launcher", PolicyArn=policy)
    key = iam.create_access_key(UserName="launcher")["AccessKey"]
    own = {"AWS_ACCESS_KEY_ID": key["AccessKeyId"], "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"]}
    place = {"AWS_ENDPOINT_URL": server.url, "AWS_REGION": "us-east-1"}
    return replace(desk, shared=desk.shared | place | own)


def launch(desk: Desk, *words: str) -> dict[str, Any]:
    """Launch as AWS's own variables say, and return what is printed."""
    run = desk.run("launch", "--instance", "p3.8xlarge", "--json", *QUICK, *words)
    assert run.returncode == 0, run.stderr
    told: dict[str, Any] = json.loads(run.stdout)
    return told


def launched(desk: Desk, *words: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run a rehearsal to its end; return its receipt and how its model's card says that it was trained."""
    receipt = launch(desk, *words)
    assert receipt["state"] == "done" and receipt["place"] == "rehearsal"
    pulled = desk.run("pull", receipt["run_id"], "--out", receipt["run_id"])
    assert pulled.returncode == 0, pulled.stderr
    (model,) = (desk.folder / receipt["run_id"]).rglob("*.safetensors")
    return receipt, read_card(model).training["choice"]


@pytest.mark.nightly
@pytest.mark.slow
def test_a_run_has_a_trial_and_the_users_profiles(launcher, candles):
    desk = launcher
    mine = desk.folder / ".config" / "mayfly" / "gpu_profiles.toml"
    mine.parent.mkdir(parents=True)
    mine.write_text(PROFILES)
    receipt, choice = launched(desk, *TUNED, "--data", str(candles))
    assert choice["from"]["micro_batch"] == "tuned here"
    (event,) = desk.events("tuned")
    assert event["limit_seconds"] > 0 and event["profile"] == "cpu"
    timed = [timing["strategy"] for timing in event["timings"] if not timing["excluded"]]
    assert {"sequential", "fused"} <= set(timed) and timed[0] == choice["strategy"]
    bodies = (path.read_bytes() for path in Path(desk.home).rglob("*") if path.is_file())
    manifests = [json.loads(body) for body in bodies if b'"lock_sha256"' in body]
    (manifest,) = (item for item in manifests if item["run_id"] == receipt["run_id"])
    assert manifest["documents"] == {
        "gpu_profiles.json": {"cpu": {"models_per_gpu": 1}, "my_v100": {"memory_gib": 15.5}}
    }
