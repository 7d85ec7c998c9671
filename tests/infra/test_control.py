"""The two functions, and what is in their zips."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pulumi
import pytest

from infra import control, packing, wheels
from tests.nightly import others_nightly
from tests.wheels import write_wheel
from trainer.base.code_files import code_files
from trainer.rehearsal.pulumi_shapes import zip_archive

if TYPE_CHECKING:
    from tests.infra.program import Recorded

# What the function needs of its zip, tried in an interpreter that sees nothing else: no site packages, no
# checkout.
USE_THE_ZIP = """
import sys
sys.path.insert(0, sys.argv[1])
import boto3, importlib
module, _, services = sys.argv[2].partition(" ")
function = importlib.import_module(module)
assert callable(function.handler)
for service in services.split():
    boto3.client(service, region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b")
assert all(module.__file__.startswith(sys.argv[1]) for module in (function, boto3))
if recurrence := sys.modules.get("trainer.retrains.recurrence"):  # Lambda's images may have no files of time zones
    import zoneinfo
    zoneinfo.reset_tzpath([])
    assert recurrence.read_time_zone("America/New_York").key == "America/New_York"
print(boto3.__version__)
"""


def test_the_sweepers_function_knows_its_stack(program: Recorded) -> None:
    function = program.inputs("aws:lambda/function:Function", "sweeper")
    assert function["handler"] == "trainer.control.functions.sweep.handler"
    assert function["environment"]["variables"] == {
        "PROJECT": "mayfly",
        "STACK": "dev",
        "BUCKET": "mayfly-dev-123456789012-eu-west-1",
        "SCHEDULE_GROUP": "mayfly-dev",
    }
    assert function["role"] == "arn:aws:mock:::mayfly-dev-eu-west-1-sweeper"
    assert function["timeout"] < 2 * 60, "a sweep ends before the next begins"


def test_control_has_its_own_role_and_no_reserved_concurrency(program: Recorded) -> None:
    function = program.inputs("aws:lambda/function:Function", "control")
    assert function["handler"] == "trainer.control.functions.control.handler"
    assert function["environment"]["variables"] == {"PROJECT": "mayfly", "STACK": "dev"}
    assert function["role"] == "arn:aws:mock:::mayfly-dev-eu-west-1-control"
    functions = program.all("aws:lambda/function:Function")
    assert not [one for one in functions if "reservedConcurrentExecutions" in one]


@pytest.mark.parametrize("name", ["sweeper", "control"])
def test_a_functions_log_expires_and_failed_calls_are_retried(program: Recorded, name: str) -> None:
    group = program.inputs("aws:cloudwatch/logGroup:LogGroup", name)
    assert group["retentionInDays"] == 30
    assert program.inputs("aws:lambda/function:Function", name)["loggingConfig"]["logGroup"] == group["name"]
    invocations = program.inputs("aws:lambda/functionEventInvokeConfig:FunctionEventInvokeConfig", name)
    assert invocations["maximumRetryAttempts"] == 2
    assert invocations["maximumEventAgeInSeconds"] == 600


def test_events_of_instances_call_control_and_nobody_else(program: Recorded) -> None:
    made = program.all("aws:cloudwatch/eventRule:EventRule")
    rules = {one["name"]: json.loads(one["eventPattern"]) for one in made}
    assert {name: rule["detail-type"] for name, rule in rules.items()} == {
        "mayfly-dev-control-ending": ["EC2 Instance State-change Notification"],
        "mayfly-dev-control-taken-back": ["EC2 Spot Instance Interruption Warning"],
    }
    for target in program.all("aws:cloudwatch/eventTarget:EventTarget"):
        assert target["arn"] == "arn:aws:mock:::mayfly-dev-control"
    for permission in program.all("aws:lambda/permission:Permission"):
        if permission["function"] == "mayfly-dev-control":
            assert permission["principal"] == "events.amazonaws.com"
            assert permission["sourceArn"].removeprefix("arn:aws:mock:::") in rules


def test_the_sweepers_zip_holds_its_modules_and_libraries_only() -> None:
    files = control.sweeper_files()
    assert {name for name in files if name.startswith("trainer/")} == set(control.SWEEPER_FILES)
    reached = code_files(["trainer.control.functions.sweep"])
    assert set(control.SWEEPER_FILES) == reached.keys()
    packages = {"dateutil" if name == "python-dateutil" else name for name in wheels.BOTO3}
    assert {name.split("/")[0].removesuffix(".py") for name in files} == {"trainer", *packages}
    assert not [name for name in files if name.endswith(".pyc")]


def test_controls_zip_holds_no_rehearsal_no_verb_and_no_node() -> None:
    rooms = {name.split("/")[1] for name in control.control_files() if name.startswith("trainer/")}
    assert not rooms & {"rehearsal", "cli", "node", "plan"}


FUNCTIONS = [
    ("trainer.control.functions.sweep", control.sweeper_files, control.SWEEPER_SERVICES),
    ("trainer.control.functions.control", control.control_files, control.CONTROL_SERVICES),
]


@pytest.mark.parametrize(("module", "files", "services"), FUNCTIONS)
def test_zip_describes_only_the_services_that_the_function_calls(
    module: str, files: Any, services: tuple[str, ...]
) -> None:
    described = [name.split("/") for name in files() if name.startswith("botocore/data/")]
    assert {parts[2] for parts in described if len(parts) > 3} == set(services)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "files", "services"), others_nightly(FUNCTIONS, lambda function: function is FUNCTIONS[1])
)
def test_a_function_runs_from_its_zip_alone(
    tmp_path: Path, module: str, files: Any, services: tuple[str, ...]
) -> None:
    archive = tmp_path / "function.zip"
    archive.write_bytes(zip_archive(packing.archive(files())))
    assert archive.stat().st_size < 4 * 1024 * 1024
    folder = tmp_path / "task"
    unpack = [sys.executable, "-m", "zipfile", "-e", str(archive), str(folder)]
    subprocess.run(unpack, check=True)
    command = [sys.executable, "-I", "-S", "-c", USE_THE_ZIP, str(folder), f"{module} {' '.join(services)}"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip() == wheels.locked("boto3", wheels.LOCK.read_text())[0]


def test_the_same_sources_make_the_same_zip() -> None:
    one, other = (zip_archive(packing.archive(control.sweeper_files())) for _ in range(2))
    assert one == other


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for wheels of the test's own, and a lock that wants one library in it."""
    monkeypatch.setattr(wheels, "FOLDER", tmp_path / "wheels")
    monkeypatch.setattr(wheels, "LIBRARIES", ("six",))
    (tmp_path / "wheels").mkdir()
    return tmp_path / "wheels"


def wheel(folder: Path, content: str) -> str:
    """Write a wheel of six and return its sha256."""
    return write_wheel(folder, "six", version="1.17.0", tag="py2.py3-none-any", text=content)


def is_code(name: str) -> bool:
    return name.endswith(".py")


def test_a_library_is_packed_from_the_locked_wheel(folder: Path) -> None:
    lock = f"six==1.17.0 ; sys_platform == 'linux' \\\n    --hash=sha256:{wheel(folder, 'good = 1')}\n"
    (found,) = wheels.files_of("six", lock, is_code).items()
    assert (found[0], found[1].read_text()) == ("six.py", "good = 1")
    found[1].write_text("evil = 1")  # what lies unpacked is not believed
    assert wheels.files_of("six", lock, is_code)["six.py"].read_text() == "good = 1"


@pytest.mark.slow
def test_a_wheel_with_another_hash_is_never_packed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel(folder, "evil = 1")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))  # which has the same one: pip refuses it by its hash
    with pytest.raises(pulumi.RunError, match="can't be fetched"):
        wheels.files_of("six", f"six==1.17.0 \\\n    --hash=sha256:{'0' * 64}\n", is_code)


@pytest.mark.slow
def test_missing_wheels_are_fetched_by_their_hash(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = f"six==1.17.0 \\\n    --hash=sha256:{wheel(folder, 'good = 1')}\n"
    monkeypatch.setattr(wheels, "FOLDER", folder.parent / "fetched")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    assert wheels.files_of("six", lock, is_code)["six.py"].read_text() == "good = 1"


def test_a_library_without_a_hash_is_refused() -> None:
    with pytest.raises(pulumi.RunError, match="no hash of six"):
        wheels.locked("six", "six==1.17.0\nboto3==1.0 --hash=sha256:1\n")


def test_a_file_missing_from_the_checkout_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "SWEEPER_FILES", (*control.SWEEPER_FILES, "trainer/control/lost.py"))
    with pytest.raises(pulumi.RunError, match=r"trainer/control/lost\.py"):
        control.sweeper_files()


def test_version_and_hashes_are_read_from_an_entry_with_markers() -> None:
    one, other, third = "1" * 64, "2" * 64, "3" * 64
    lock = (
        f"a==9 --hash=sha256:{third}\n"
        f"boto3==1.2.3 ; sys_platform == 'linux' \\\n    --hash=sha256:{one} \\\n    --hash=sha256:{other}\n"
    )
    lock += f"botocore==1.2.3 \\\n    --hash=sha256:{third}\n# six==9\n"
    assert wheels.locked("boto3", lock) == ("1.2.3", {one, other})
