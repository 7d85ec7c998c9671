"""The sweeper's function and what is in its zip."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pulumi
import pytest

from infra import control
from trainer.code_files import code_files
from trainer.rehearsal.pulumi_resources import zip_archive

if TYPE_CHECKING:
    from tests.infra.conftest import Recorded

# What the function needs of its zip, tried in an interpreter that sees nothing else: no site packages, no checkout.
USE_THE_ZIP = """
import sys
sys.path.insert(0, sys.argv[1])
from trainer.control import sweep
import boto3
from botocore.config import Config
assert callable(sweep.handler)
for service in ("ec2", "s3", "scheduler", "sts"):
    boto3.client(service, region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b")
assert all(module.__file__.startswith(sys.argv[1]) for module in (sweep, boto3))
print(boto3.__version__)
"""


def test_function_is_the_sweepers_handler_with_what_it_needs_to_know(program: Recorded) -> None:
    function = program.inputs("aws:lambda/function:Function")
    assert function["handler"] == "trainer.control.sweep.handler"
    assert function["environment"]["variables"] == {
        "PROJECT": "mayfly",
        "STACK": "dev",
        "BUCKET": "mayfly-dev-123456789012-eu-west-1",
        "SCHEDULE_GROUP": "mayfly-dev",
    }
    assert function["role"] == "arn:aws:mock:::mayfly-dev-eu-west-1-sweeper"
    assert function["timeout"] < 2 * 60, "a sweep ends before the next begins"


def test_function_logs_where_lines_expire(program: Recorded) -> None:
    group = program.inputs("aws:cloudwatch/logGroup:LogGroup")
    assert group["retentionInDays"] == 30
    assert program.inputs("aws:lambda/function:Function")["loggingConfig"]["logGroup"] == group["name"]


def test_a_failed_sweep_is_tried_again_and_a_stale_one_is_dropped(program: Recorded) -> None:
    invocations = program.inputs("aws:lambda/functionEventInvokeConfig:FunctionEventInvokeConfig")
    assert invocations["maximumRetryAttempts"] == 2
    assert invocations["maximumEventAgeInSeconds"] == 600


def test_zip_holds_the_sweepers_own_modules_and_its_libraries_only() -> None:
    files = control.sweeper_files()
    assert {name for name in files if name.startswith("trainer/")} == set(control.OWN_FILES)
    assert set(control.OWN_FILES) == code_files(["trainer.control.sweep"]).keys()  # what the handler reaches, and no more
    assert {name.split("/")[0].removesuffix(".py") for name in files} == {"trainer", *control.LIBRARIES}
    assert not [name for name in files if name.endswith(".pyc")]


def test_zip_describes_only_the_services_that_the_sweeper_calls() -> None:
    services = {
        name.split("/")[2] for name in control.sweeper_files() if name.startswith("botocore/data/") and name.count("/") > 2
    }
    assert services == set(control.SERVICES)


@pytest.mark.slow
def test_sweeper_runs_from_the_zip_alone(tmp_path: Path) -> None:
    archive = tmp_path / "sweeper.zip"
    archive.write_bytes(zip_archive(control.sweeper_archive()))
    assert archive.stat().st_size < 4 * 1024 * 1024
    folder = tmp_path / "task"
    unpack = [sys.executable, "-m", "zipfile", "-e", str(archive), str(folder)]
    subprocess.run(unpack, check=True)
    command = [sys.executable, "-I", "-S", "-c", USE_THE_ZIP, str(folder)]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert (
        ended.stdout.strip() == control.locked_versions((Path(__file__).parents[2] / "requirements.lock").read_text())["boto3"]
    )


def test_the_same_sources_make_the_same_zip() -> None:
    assert zip_archive(control.sweeper_archive()) == zip_archive(control.sweeper_archive())


def test_a_library_other_than_the_locked_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control.importlib.metadata, "version", lambda distribution: "0.9")
    with pytest.raises(pulumi.RunError, match=r"boto3 0\.9 is installed and requirements\.lock has"):
        control.check_versions()


def test_a_file_missing_from_the_checkout_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "OWN_FILES", (*control.OWN_FILES, "trainer/control/lost.py"))
    with pytest.raises(pulumi.RunError, match=r"trainer/control/lost\.py"):
        control.sweeper_files()


def test_locked_versions_are_read_from_lines_with_markers() -> None:
    assert control.locked_versions("boto3==1.2.3 ; sys_platform == 'linux' \\\n    --hash=x\n# six==9\nsix==1.17.0\n") == {
        "boto3": "1.2.3",
        "six": "1.17.0",
    }
