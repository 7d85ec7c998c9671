"""`mayfly rehearse`: a shell's lease, as a shell sees it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.desk import ROOT
from tests.network import HOOK

PROGRAM = (
    "import boto3; print(boto3.client('sts').get_caller_identity()['Account'], "
    "boto3.client('ssm').get_parameter(Name='/mayfly/mayfly/dev')['Parameter']['Name'])"
)


@pytest.mark.slow
def test_a_shell_borrows_the_embedded_aws_and_ends_it(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    environment |= {"MAYFLY_HOME": str(tmp_path / "home"), "PYTHONPATH": f"{HOOK}:{ROOT}"}
    mayfly = f"{sys.executable} -m trainer.cli.main rehearse"
    script = f'set -e; variables=$({mayfly} --env); eval "$variables"; {sys.executable} -c "{PROGRAM}"; {mayfly} --stop'
    ended = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, timeout=500, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == ["000000000001", "/mayfly/mayfly/dev", "stopped"]
    assert "000000000001" not in ended.stderr
    assert not (tmp_path / "home" / "server.json").exists()
