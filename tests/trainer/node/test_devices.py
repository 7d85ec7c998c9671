"""The GPUs that a node finds."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.manifests import MACHINE
from trainer.aws.place import ACCOUNT, REHEARSAL
from trainer.base.errors import ConfigError, TrainingFailed
from trainer.node import agent
from trainer.node.devices import (
    GPUS,
    TORCH,
    Devices,
    NoDriver,
    check_torch,
    find_devices,
    import_torch,
    nvidia_smi,
    own_devices,
    smoke_test,
)
from trainer.node.identity import NodeIdentity
from trainer.node.report import Status

BOOTED = datetime(2026, 11, 20, 12, tzinfo=timezone.utc)
FOUR = "".join(f"{index}, NVIDIA L4, 22888\n" for index in range(4))


@pytest.fixture
def lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that sets nvidia-smi's answer."""
    return lambda listing: nvidia_smi_that(f"printf '%s' '{listing}'", tmp_path, monkeypatch)


def nvidia_smi_that(does: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a program in nvidia-smi's place, a line of the shell."""
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{does}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


class Stuck(subprocess.Popen[str]):
    """A process that waits for a GPU that hangs, inside its driver: no signal ends it."""

    def kill(self) -> None:
        pass

    def wait(self, timeout: float | None = None) -> int:
        assert timeout is not None, "it is waited for as long as it likes"
        raise subprocess.TimeoutExpired(self.args, timeout)

    def __del__(self) -> None:
        super().kill()
        super().wait()


def test_all_gpus_are_found_and_named_for_torch(lists) -> None:
    lists(FOUR)
    devices = find_devices(expected=4, place=ACCOUNT)
    assert (devices.found, devices.kind, devices.note) == (4, "cuda", "NVIDIA L4")
    assert devices.names == ("cuda:0", "cuda:1", "cuda:2", "cuda:3")
    assert find_devices(expected=4, place=REHEARSAL).names == ("cpu",), "a rehearsal tests its CPU once"


def test_a_type_without_gpus_is_its_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    devices = find_devices(expected=0, place=ACCOUNT)
    assert (devices.found, devices.kind, devices.names) == (1, "cpu", ("cpu",))
    with pytest.raises(TrainingFailed, match="nvidia-smi shows no GPU"):
        find_devices(expected=1, place=ACCOUNT)


def test_a_training_without_gpus_has_a_worker_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(6))
    devices = find_devices(expected=0, place=ACCOUNT, cores=4)
    assert (devices.found, devices.kind, devices.names) == (4, "cpu", ("cpu",))
    assert find_devices(expected=0, place=REHEARSAL, cores=64).found == 6


@pytest.mark.parametrize(
    "listing", ["", "0, NVIDIA L4, 22888\n", FOUR + "4, NVIDIA L4, 22888\n", "No devices were found\n"]
)
def test_another_number_of_gpus_is_an_error(lists, listing: str) -> None:
    lists(listing)
    with pytest.raises(TrainingFailed, match="this instance type has 4"):
        find_devices(expected=4, place=ACCOUNT)


def test_a_smoke_test_that_hangs_is_ended(tmp_path: Path) -> None:
    devices = Devices(expected=4, found=4, kind="cuda", note="")
    with pytest.raises(TrainingFailed, match="the smoke test hangs"):
        smoke_test(devices, folder=tmp_path, seconds=0)


def test_a_process_that_a_hung_gpu_holds_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "Popen", Stuck)
    with pytest.raises(TrainingFailed, match="the smoke test hangs"):
        smoke_test(Devices(expected=1, found=1, kind="cuda", note=""), folder=tmp_path, seconds=0)
    nvidia_smi_that("exec sleep 600", tmp_path, monkeypatch)
    with pytest.raises(NoDriver, match="timed out"):
        nvidia_smi(GPUS, seconds=0.01)


def test_a_failed_smoke_test_names_the_device_and_its_last_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = tmp_path / "python"
    failing.write_text("#!/bin/sh\necho first; echo no kernel image >&2; exit 1\n")
    failing.chmod(0o755)
    monkeypatch.setattr("trainer.node.devices.sys.executable", str(failing))
    with pytest.raises(TrainingFailed) as failed:
        smoke_test(Devices(expected=1, found=1, kind="cpu", note=""), folder=tmp_path, seconds=500)
    assert (failed.value.what, failed.value.why) == ("the smoke test failed on cpu", "no kernel image")
    assert failed.value.exit_code == 100


def test_too_few_devices_end_a_run_before_anything_is_fetched(lists, monkeypatch: pytest.MonkeyPatch) -> None:
    lists(FOUR.splitlines()[0])
    monkeypatch.setattr(agent, "check_torch", lambda **_: TORCH)
    identity = NodeIdentity(deadline=BOOTED, run_id="r", attempt=1, node=0, instance_type="p3.8xlarge")
    status = Status(identity=identity, phases={"boot": BOOTED})
    node = SimpleNamespace(place=ACCOUNT, status=status, enter=status.enter)
    machines = {"p3.8xlarge": replace(MACHINE, gpu_count=8)}
    asked = SimpleNamespace(ssh_key="", command=SimpleNamespace(devices="tested"), machines=machines)
    with pytest.raises(TrainingFailed, match="found 1 GPUs, this instance type has 8") as failed:
        agent.check_machine(node, asked)
    assert failed.value.exit_code == 100
    assert list(status.phases) == ["boot"], "it never staged an input"


def test_a_first_import_that_never_ends_is_ended(tmp_path: Path) -> None:
    with pytest.raises(TrainingFailed, match="the first import of torch hangs"):
        import_torch(folder=tmp_path, seconds=0)


def test_the_first_import_is_outside_the_smoke_tests_limit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    limits = {}
    for name, took in (("import_torch", 200.0), ("smoke_test", 9.0)):

        def test(
            *devices: Devices, folder: Path, seconds: float, name: str = name, took: float = took
        ) -> float:
            limits[name] = seconds
            return took

        monkeypatch.setattr(agent, name, test)
    monkeypatch.setattr(agent, "utc_now", lambda: BOOTED + timedelta(seconds=60))
    monkeypatch.setattr(agent, "check_torch", lambda **_: TORCH)
    monkeypatch.setattr(agent, "find_devices", lambda **_: Devices(expected=1, found=1, kind="cuda", note=""))
    one = {"run_id": "r", "attempt": 1, "node": 0, "instance_type": "g6.xlarge", "boot_seconds": 900}
    identity = NodeIdentity(deadline=BOOTED, **one)
    status = Status(identity=identity, phases={"boot": BOOTED}, boot={"agent": 3.0})
    node = SimpleNamespace(place=ACCOUNT, status=status, work=tmp_path)
    machines = {"g6.xlarge": MACHINE}
    agent.check_devices(node, SimpleNamespace(command=SimpleNamespace(devices="tested"), machines=machines))
    assert limits == {"import_torch": 840.0, "smoke_test": 180}
    assert status.boot == {"agent": 3.0, "import": 200.0, "smoke": 9.0}


def test_another_minor_of_torch_is_refused() -> None:
    assert check_torch(f"{TORCH}.7+cu130") == f"{TORCH}.7+cu130"
    for other in ("2.1", "3.13", f"{TORCH}1.0"):
        with pytest.raises(ConfigError, match="image_line"):
            check_torch(other)


def test_the_node_needs_the_torch_that_the_desk_is_tested_with() -> None:
    pyproject = (Path(__file__).parents[3] / "pyproject.toml").read_text()
    assert re.findall(r'"torch==(\d+\.\d+)', pyproject) == [TORCH]


@pytest.mark.parametrize(
    ("visible", "found"),
    [
        (None, (2, "cuda")),
        ("1", (1, "cuda")),
        ("", (1, "cpu")),
        ("-1", (1, "cpu")),
        ("0,1", (2, "cuda")),
        ("0,-1,1", (1, "cuda")),
    ],
)
def test_own_gpus_are_those_that_cuda_may_use(monkeypatch, lists, visible, found):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    lists("0, NVIDIA GeForce RTX 4090, 24564\n1, NVIDIA GeForce RTX 4090, 24564\n")
    devices = own_devices()
    assert (devices.found, devices.kind) == found


def test_without_a_driver_it_is_the_cpu(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert own_devices().kind == "cpu"
