"""`mayfly rehearse`: a shell's lease, as a shell sees it. And looks at a rehearsal where there was none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.desk import CLIENT, ROOT
from tests.network import HOOK
from trainer.cli.main import main

PROGRAM = (
    "import boto3, json; print(boto3.client('sts').get_caller_identity()['Account'],"
    " json.loads(boto3.client('ssm').get_parameter(Name='/mayfly/mayfly/dev')['Parameter']['Value'])['rehearsal'],"
    " len(boto3.client('s3').list_buckets()['Buckets']))"
)
STALE = {  # what a shell may have of an account of its own: each would lead elsewhere, or spoil the keys
    "AWS_PROFILE": "of-an-account",
    "AWS_SESSION_TOKEN": "of-an-account",
    "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:9",
    "AWS_CA_BUNDLE": "/of/an/account",
}


@pytest.mark.nightly
@pytest.mark.slow
def test_a_shell_borrows_the_embedded_aws_and_ends_it(
    tmp_path: Path, candles: Path, shared: dict[str, str]
) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    environment |= {
        "MAYFLY_HOME": str(tmp_path / "home"),
        "PYTHONPATH": f"{HOOK}:{ROOT}",
        "HTTP_PROXY": "http://127.0.0.1:9",
    }
    environment |= STALE | {"AWS_PAGER": ""} | shared
    mayfly = (
        f"{sys.executable} -I -S {CLIENT} {shared['MAYFLY_FORK_SERVER']} {sys.executable} -m trainer.cli.main"
    )
    lines = (
        f'set -e; variables=$({mayfly} rehearse --env); eval "$variables"; {sys.executable} -c "{PROGRAM}"',
        f"{mayfly} launch --dry-run --json --instance p3.8xlarge --data {candles} > {tmp_path}/plan.json",
        (
            f"{mayfly} status --json > {tmp_path}/status.json; env > {tmp_path}/variables; {mayfly} rehearse"
            " --stop"
        ),
    )
    script = ["bash", "-c", "; ".join(lines)]
    ended = subprocess.run(script, env=environment, capture_output=True, text=True, timeout=500, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == ["000000000001", "True", "1", "stopped"]
    assert "000000000001" not in ended.stderr
    assert json.loads((tmp_path / "plan.json").read_text())["place"] == "rehearsal"
    assert json.loads((tmp_path / "status.json").read_text()) == {"runs": []}
    names = {line.partition("=")[0] for line in (tmp_path / "variables").read_text().splitlines()}
    assert not names & STALE.keys() and "AWS_PAGER" in names
    assert not (tmp_path / "home" / "server.json").exists()


@pytest.mark.parametrize(
    "words",
    [
        *(
            "status",
            "receipts",
            "doctor",
            "models list",
            "models pull NAME",
            "predict NAME --data CANDLES",
            "predict --run RUN --data CANDLES",
        ),
        *(f"{verb} 20261120-120000-crypto-k3v9" for verb in ("status", "logs", "stop", "pull", "receipts")),
    ],
)
def test_a_look_at_a_rehearsal_that_never_was_creates_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: str,
    candles: Path,
) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    monkeypatch.delenv("MAYFLY_HOME", raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("XDG_DATA_HOME", str(folder / "data"))
    monkeypatch.chdir(folder)
    assert main([*words.replace("CANDLES", str(candles)).split(), "--rehearse"]) == 103
    line = (
        f"error: nothing was rehearsed yet (there is no folder {folder}/data/mayfly). Rehearse a launch"
        " first: "
    )
    assert capsys.readouterr().err == f"{line}mayfly launch --rehearse.\n"
    assert main(["rehearse", "--stop"]) == 0
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (None, "stack.yaml is not a file"),
        ("retrains: []", "stack.yaml has no settings of a stack (it is not YAML with a table `config`)"),
        ("config: [", "stack.yaml has no settings of a stack (while parsing"),
        ("config: {mayfly:retrain: []}", "the stack has no setting 'retrain'. Did you mean retrains, "),
        ("config: {volume_gib: many}", "the stack's setting 'volume_gib' is 'many'"),
    ],
)
def test_settings_that_no_stack_has_start_nothing(content, line, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("MAYFLY_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    if content is not None:
        (tmp_path / "stack.yaml").write_text(content)
    assert main(["rehearse", "--settings", "stack.yaml"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {line}") and said.count("\n") == 1
    assert not (tmp_path / "home").exists()
