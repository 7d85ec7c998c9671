"""A hostile refresh script gets what docs/security.md says, and no more: its machine's role is held to its
policy.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.prepare_runs import FIRST, PreparedStack, prepared
from trainer.node.agent import fetch_manifest
from trainer.node.command import run_command

__all__ = ["prepared"]  # a fixture
ATTACK = Path(__file__).with_name("hostile_refresh.py")
# Every line of this table stands in docs/security.md.
GETS = {
    "write checkpoints/OWN/x",
    "read code/1.whl",
    "read raw/main/BTC-USD_1m.parquet by version",
    "read raw/other/ETH-USD_1m.parquet by version",
    "read runs/r0/manifest.json",
    "read runs/r0/attempts/2/start.json",
    "read runs/r0/attempts/2/stop.json",
    "read resumed/r0/2/1 by version",
    "write attempts/OWN/r2/1/0/x",
    "write live/OWN/r2/1/x",
    "read a secret that it was given",
    "read another retrain's secret",
    "say who it is",
}


def test_a_hostile_refresh_gets_what_the_security_page_says(
    prepared: Callable[[str], PreparedStack],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = prepared(ATTACK.read_text())
    access, bucket, identity = run.access, run.outputs.bucket, run.node.status.identity
    s3, ssm = access.client("s3"), access.client("ssm")
    versions = {}
    for key in (
        "raw/other/ETH-USD_1m.parquet",
        "code/1.whl",
        "code/1.json",
        "retrains/weekly.json",
        "runs/r0/run.json",
        "runs/r0/manifest.json",
        "runs/r0/receipt.json",
        "runs/r0/plan.json",
        "runs/r0/attempts/2/start.json",
        "runs/r0/attempts/2/stop.json",
        "resumed/r0/2/1",
        "checkpoints/AROAOTHER:i-1/r0/1/0/data/1",
        "models/production/a.safetensors",
        "models/experiments/AROAOTHER:i-1/r0/1/a.safetensors",
        "attempts/AROAOTHER:i-1/r0/1/0/result.json",
        f"attempts/{identity.role_id}:{identity.instance_id}/r1/1/0/result.json",
        "memory/measurements.json",
    ):
        versions[key] = s3.put_object(Bucket=bucket, Key=key, Body=b"x")["VersionId"]
    versions[f"raw/main/{FIRST}"] = s3.head_object(Bucket=bucket, Key=f"raw/main/{FIRST}")["VersionId"]
    for name in ("dev/secrets/OTHER", "dev/webhook", "prod/secrets/API_KEY"):
        ssm.put_parameter(Name=f"/mayfly/mayfly/{name}", Value="x" * 9, Type="SecureString")
    told = {
        "BUCKET_TO_ROB": bucket,
        "OWN_ID": f"{identity.role_id}:{identity.instance_id}",
        "VERSIONS": json.dumps(versions),
        "TEMPLATE": run.outputs.launch_template,
        "IMAGE": run.record.ladder[0].image_id,
        "CONTROL": run.outputs.control_arn,
        "TOPIC": run.outputs.topic_arn,
        # On a machine both are where they always are.
        "AWS_EC2_METADATA_SERVICE_ENDPOINT": run.metadata,
        "AWS_ENDPOINT_URL": str(access.endpoint_url),
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    with caplog.at_level(logging.INFO):
        run_command(run.node, fetch_manifest(run.node))
    said = [record.getMessage() for record in caplog.records]
    lines = [line.removeprefix("| ") for line in said if line.startswith("| ")]
    own = told["OWN_ID"]
    got = {line.removeprefix("got: ").replace(own, "OWN") for line in lines if line.startswith("got: ")}
    assert got == GETS
    assert [line for line in lines if line.startswith("failed")] == []
    assert len([line for line in lines if line.startswith("refused: ")]) > 40
    assert "env: ['API_KEY']" in lines
    security = (Path(__file__).parents[3] / "docs" / "security.md").read_text(encoding="utf-8")
    for phrase in (
        "every data set by version",
        "every code bundle",
        "manifest of any run",
        "its start files with the copies of checkpoints",
        "every secret of the stack",
    ):
        assert phrase in security, phrase
