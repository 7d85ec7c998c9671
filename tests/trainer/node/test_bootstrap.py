"""The bootstrap's safety: it refuses where it could hurt, arms the end before anything else, and always
powers off.

Nothing here can reach this machine's own systemctl or poweroff: every PATH is a folder of fakes, or a node's
sandbox.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from trainer.rehearsal.instance import TOOLS, parse_calendar, prepare_sandbox
from trainer.runs.lease import read_lease

BOOTSTRAP = Path(__file__).parents[3] / "trainer/node/bootstrap.sh"
POWER = ("systemctl", "poweroff", "shutdown", "reboot", "halt", "nvidia-smi")
RUN = "20261120-235912-test-k3v9"


@pytest.fixture
def fakes(tmp_path: Path) -> Path:
    """A folder to be the whole PATH: harmless tools, and fakes of the dangerous ones which note that they
    were called.
    """
    folder = tmp_path / "fakes"
    folder.mkdir()
    for tool in TOOLS:
        if found := shutil.which(tool, path="/usr/bin:/bin"):
            (folder / tool).symlink_to(found)
    for tool in POWER:
        (folder / tool).write_text(f"#!/bin/bash\necho {tool} >> {tmp_path}/called\n")
        (folder / tool).chmod(0o755)
    return folder


@pytest.fixture
def refused(tmp_path: Path, fakes: Path) -> Callable[..., str]:
    """Run the bootstrap, check that it refused and touched nothing, and return what it said."""

    def run(*, path: Path = fakes, **environment: str) -> str:
        script = tmp_path / "bootstrap.sh"
        script.write_text(BOOTSTRAP.read_text().replace("@@CAP_MINUTES@@", "60"))
        before = files(tmp_path)
        done = subprocess.run(
            ["/bin/bash", str(script)],
            env={"PATH": str(path), "MAYFLY_DESK_PYTHON": "/bin/false", **environment},
            capture_output=True,
            text=True,
            timeout=500,
        )
        assert done.returncode == 78, done.stderr
        assert files(tmp_path) == before
        assert not Path("/etc/systemd/system/mayfly-deadline.timer").exists()
        return done.stderr

    return run


def files(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


def test_it_refuses_on_a_machine_that_is_no_instance_of_ours(refused: Any) -> None:
    assert "not started by cloud-init" in refused()


def test_it_refuses_a_root_that_is_no_sandbox(refused: Any) -> None:
    for root in ("", "/", "sandbox", "/etc"):
        assert "not a rehearsal's sandbox" in refused(MAYFLY_ROOT=root)


def test_it_refuses_without_stubs(refused: Any, tmp_path: Path) -> None:
    prepare_sandbox(tmp_path / "sandbox")
    for tool in POWER:
        (tmp_path / "sandbox/bin" / tool).unlink()
    message = refused(path=tmp_path / "sandbox/bin", MAYFLY_ROOT=str(tmp_path / "sandbox"))
    assert "no systemctl stub on PATH" in message


@pytest.mark.parametrize("tool", POWER)
def test_it_refuses_when_one_stub_is_missing(refused: Any, tmp_path: Path, tool: str) -> None:
    prepare_sandbox(tmp_path / "sandbox")
    (tmp_path / "sandbox/bin" / tool).unlink()
    assert tool in refused(path=tmp_path / "sandbox/bin", MAYFLY_ROOT=str(tmp_path / "sandbox"))


def test_it_refuses_when_path_was_reset(refused: Any, tmp_path: Path, fakes: Path) -> None:
    prepare_sandbox(tmp_path / "sandbox")
    assert "not the sandbox's stub" in refused(path=fakes, MAYFLY_ROOT=str(tmp_path / "sandbox"))


def test_it_refuses_a_tool_that_only_lies_where_the_stub_should(
    refused: Any, tmp_path: Path, fakes: Path
) -> None:
    prepare_sandbox(tmp_path / "sandbox")
    shutil.copy(fakes / "poweroff", tmp_path / "sandbox/bin/poweroff")
    message = refused(path=tmp_path / "sandbox/bin", MAYFLY_ROOT=str(tmp_path / "sandbox"))
    assert "is not marked as a stub" in message


def test_it_refuses_a_link_from_the_stubs_to_another_tool(refused: Any, tmp_path: Path, fakes: Path) -> None:
    prepare_sandbox(tmp_path / "sandbox")
    (tmp_path / "sandbox/bin/systemctl").unlink()
    (tmp_path / "sandbox/bin/systemctl").symlink_to(fakes / "systemctl")
    assert "systemctl" in refused(path=tmp_path / "sandbox/bin", MAYFLY_ROOT=str(tmp_path / "sandbox"))


def test_it_refuses_a_sandbox_whose_unit_folder_leads_out(refused: Any, tmp_path: Path) -> None:
    prepare_sandbox(tmp_path / "sandbox")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "sandbox/etc/systemd/system").rmdir()
    (tmp_path / "sandbox/etc/systemd/system").symlink_to(tmp_path / "elsewhere")
    message = refused(path=tmp_path / "sandbox/bin", MAYFLY_ROOT=str(tmp_path / "sandbox"))
    assert "leads out of the sandbox" in message


def test_the_cap_is_armed_before_anything_is_asked_or_downloaded(machine: Any) -> None:
    before = datetime.now(timezone.utc).replace(microsecond=0)
    machine.start()
    machine.server.shutdown()  # nobody answers a question for metadata
    machine.server.server_close()
    machine.wait_until_off()
    assert (
        before + timedelta(minutes=60) <= armed(machine) <= datetime.now(timezone.utc) + timedelta(minutes=60)
    )
    assert not (machine.sandbox / "opt/mayfly/code").exists()


def test_the_timer_is_tightened_to_the_deadline(machine: Any) -> None:
    machine.start()
    machine.wait_until_off()
    assert armed(machine) == machine.deadline
    unit = (machine.sandbox / "etc/systemd/system/mayfly-deadline.service").read_text()
    assert f"ExecStart={machine.sandbox}/bin/systemctl poweroff" in unit
    assert (machine.sandbox / "etc/systemd/system/timers.target.wants/mayfly-deadline.timer").is_symlink()


def test_a_deadline_past_the_cap_leaves_the_cap(machine: Any) -> None:
    machine.cap_minutes = "10"
    machine.start()
    machine.wait_until_off()
    assert armed(machine) < machine.deadline


def test_a_deadline_that_is_over_powers_off_at_once(machine: Any) -> None:
    machine.deadline -= timedelta(hours=1)
    machine.start()
    machine.wait_until_off()
    assert machine.exit_code() == 104
    assert not (machine.sandbox / "opt/mayfly/code").exists()


def test_a_cap_that_was_never_filled_in_powers_off(machine: Any) -> None:
    machine.cap_minutes = "@@CAP_MINUTES@@"
    machine.start()
    machine.wait_until_off()
    assert machine.exit_code() != 0


def test_code_with_another_sha256_is_never_run(machine: Any) -> None:
    machine.bundle_sha256 = "0" * 64
    machine.start()
    machine.wait_until_off()
    assert machine.exit_code() == 1
    assert "the tag says 0000" in machine.log()
    assert not (machine.sandbox / "opt/mayfly/code").exists()
    # Its own log is all that such a machine can leave, and it does.
    log = machine.read(f"attempts/AROA1:i-1/{RUN}/1/0/bootstrap.log").decode()
    assert "the tag says 0000" in log
    assert machine.own.secret_key not in log and machine.own.access_key not in log and "Signature" not in log


def test_a_hung_trainer_ends_by_the_operating_systems_timer(machine: Any) -> None:
    machine.script = {"events": [], "sleep": 600, "exit": 0}
    node = machine.start()
    machine.wait_for(lambda: machine.timer().count(f"{machine.deadline:%H:%M:%S}"))
    machine.wait_for(lambda: machine.keys("live/"))
    node.tick(machine.deadline - timedelta(seconds=1))
    assert node.poll() == "running"
    node.tick(machine.deadline)
    assert node.poll() == "poweroff"


@pytest.fixture
def slow_image(tmp_path: Path) -> Path:
    """An image's Python that never ends, and has one sign of life."""
    python = tmp_path / "slow-python"
    python.write_text(f"#!/bin/bash\ntouch {tmp_path}/asked\nexec sleep 600\n")
    python.chmod(0o755)
    return python


def test_an_image_without_its_python_leaves_a_log_and_a_lease(machine: Any) -> None:
    machine.image_python = "/nowhere/bin/python"
    machine.start()
    machine.wait_until_off()
    assert machine.exit_code() == 103
    log = machine.read(f"attempts/AROA1:i-1/{RUN}/1/0/bootstrap.log").decode()
    assert "the image has no /nowhere/bin/python: set image_line" in log
    assert log.rstrip().endswith("powering off, exit code 103")


def test_the_lease_and_the_log_come_before_the_slow_stages_end(machine: Any, slow_image: Path) -> None:
    machine.image_python = str(slow_image)
    machine.start()
    lease = machine.wait_for(lambda: machine.keys("live/"))
    assert lease == [f"live/AROA1:i-1/{RUN}/1/0.json"]
    told = read_lease(machine.read(lease[0]), datetime.now(timezone.utc))
    assert told.instance_id == "i-1"
    key = f"attempts/AROA1:i-1/{RUN}/1/0/bootstrap.log"
    machine.wait_for(lambda: machine.keys(key) and b"install the environment" in machine.read(key))
    assert machine.node.poll() == "running"


def test_a_signal_ends_a_stage_at_once(machine: Any, slow_image: Path) -> None:
    machine.image_python = str(slow_image)
    node = machine.start()
    machine.wait_for((slow_image.parent / "asked").exists)
    os.kill(node.process_group, signal.SIGTERM)  # bash alone, as an operating system that shuts down does
    machine.wait_until_off()
    assert machine.exit_code() == 143


def test_a_stage_longer_than_the_boots_time_ends_the_machine(machine: Any, slow_image: Path) -> None:
    machine.image_python, machine.boot_seconds = str(slow_image), "3"
    machine.start()
    machine.wait_until_off()
    assert machine.exit_code() == 124
    assert (
        "the boot took longer than 3 s"
        in machine.read(f"attempts/AROA1:i-1/{RUN}/1/0/bootstrap.log").decode()
    )


def test_what_must_work_on_a_wrong_image_uses_the_systems_python() -> None:
    script = BOOTSTRAP.read_text()
    assert "python=/usr/bin/python3" in script
    assert {line.split("$python")[1].split()[1] for line in script.splitlines() if '"$python"' in line} == {
        "-I"
    }


def test_it_fits_into_user_data() -> None:
    assert (
        BOOTSTRAP.stat().st_size < 15_500
    )  # EC2 takes 16,384; the placeholders grow when they are filled in


def armed(machine: Any) -> datetime:
    line = next(line for line in machine.timer().splitlines() if line.startswith("OnCalendar="))
    return parse_calendar(line.removeprefix("OnCalendar="))
