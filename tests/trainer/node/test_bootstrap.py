"""The bootstrap's safety: it refuses where it could hurt, arms the end before anything else, and always
powers off.

Nothing here can reach this machine's own systemctl or poweroff: every PATH is a folder of fakes, or a node's
sandbox.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from tests.processes import await_end_of
from trainer.rehearsal import instance
from trainer.rehearsal.instance import TOOLS, parse_calendar, prepare_sandbox
from trainer.runs.lease import LEASE, read_lease, silent
from trainer.runs.outcome import last_complaint

BOOTSTRAP = Path(__file__).parents[3] / "trainer/node/bootstrap.sh"
POWER = ("systemctl", "poweroff", "shutdown", "reboot", "halt", "nvidia-smi")
RUN = "20261120-235912-test-k3v9"
HELPER = BOOTSTRAP.read_text().partition("<<'PYTHON'\n")[2].partition("\nPYTHON\n")[0]
UUTILS = Path("/usr/lib/cargo/bin/coreutils")


@pytest.fixture(
    params=[
        "gnu",
        pytest.param(
            "uutils",
            marks=[
                pytest.mark.slow,
                pytest.mark.skipif(not UUTILS.is_dir(), reason="uutils are not installed"),
            ],
        ),
    ]
)
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, machine: Any) -> Any:
    """A machine with GNU's tools, and one with those of Ubuntu from 25.10 on (Debian: rust-coreutils)."""
    if request.param == "uutils":
        monkeypatch.setattr(instance, "TOOL_FOLDERS", f"{UUTILS}:{instance.TOOL_FOLDERS}")
    return machine


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


@pytest.fixture
def sandbox(tmp_path: Path) -> Path:
    prepare_sandbox(tmp_path / "sandbox")
    return tmp_path / "sandbox"


def files(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


def test_it_refuses_on_a_machine_that_is_no_instance_of_ours(refused: Any) -> None:
    assert "not started by cloud-init" in refused()


def test_it_refuses_a_root_that_is_no_sandbox(refused: Any) -> None:
    for root in ("", "/", "sandbox", "/etc"):
        assert "not a rehearsal's sandbox" in refused(MAYFLY_ROOT=root)


@pytest.mark.parametrize("tool", POWER)
def test_it_refuses_when_one_stub_is_missing(refused: Any, sandbox: Path, tool: str) -> None:
    (sandbox / "bin" / tool).unlink()
    assert tool in refused(path=sandbox / "bin", MAYFLY_ROOT=str(sandbox))


def test_it_refuses_when_path_was_reset(refused: Any, sandbox: Path, fakes: Path) -> None:
    assert "not the sandbox's stub" in refused(path=fakes, MAYFLY_ROOT=str(sandbox))


def unmarked(sandbox: Path, fakes: Path) -> None:
    shutil.copy(fakes / "poweroff", sandbox / "bin/poweroff")


def linked_away(sandbox: Path, fakes: Path) -> None:
    (sandbox / "bin/systemctl").unlink()
    (sandbox / "bin/systemctl").symlink_to(fakes / "systemctl")


def units_elsewhere(sandbox: Path, fakes: Path) -> None:
    (sandbox / "etc/systemd/system").rmdir()
    (sandbox / "etc/systemd/system").symlink_to(fakes)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (unmarked, "is not marked as a stub"),
        (linked_away, "systemctl"),
        (units_elsewhere, "leads out of the"),
    ],
)
def test_it_refuses_a_spoiled_sandbox(refused: Any, sandbox: Path, fakes: Path, spoil: Any, why: str) -> None:
    spoil(sandbox, fakes)
    assert why in refused(path=sandbox / "bin", MAYFLY_ROOT=str(sandbox))


@pytest.mark.parametrize("ahead", [pytest.param(timedelta(0), marks=pytest.mark.nightly), timedelta(days=7)])
def test_the_cap_is_armed_before_anything_is_asked_or_downloaded(machine: Any, ahead: timedelta) -> None:
    before = datetime.now(timezone.utc).replace(microsecond=0)
    machine.ahead_seconds = int(ahead.total_seconds())
    machine.start()
    machine.server.shutdown()  # nobody answers a question for metadata
    machine.server.server_close()
    machine.wait_until_off()
    cap = ahead + timedelta(minutes=60)
    assert before + cap <= armed(machine) <= datetime.now(timezone.utc) + cap
    assert not (machine.sandbox / "opt/mayfly/code").exists()


def test_the_timer_is_tightened_to_the_deadline(machine: Any) -> None:
    machine.bundle_sha256 = "0" * 64  # no code is run
    machine.start()
    machine.wait_until_off()
    assert armed(machine) == machine.deadline
    of_rust = (machine.sandbox / "bin/ln").readlink().is_relative_to(UUTILS)
    assert of_rust is instance.TOOL_FOLDERS.startswith(str(UUTILS)), "the tools are those of this test"
    unit = (machine.sandbox / "etc/systemd/system/mayfly-deadline.service").read_text()
    assert f"ExecStart={machine.sandbox}/bin/systemctl poweroff" in unit
    assert (machine.sandbox / "etc/systemd/system/timers.target.wants/mayfly-deadline.timer").is_symlink()


def test_a_deadline_past_the_cap_leaves_the_cap(machine: Any) -> None:
    machine.cap_minutes, machine.bundle_sha256 = "10", "0" * 64  # no code is run
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
    assert "the tag says 0000" in last_complaint(log)
    assert machine.own.secret_key not in log and machine.own.access_key not in log and "Signature" not in log


def test_a_bundle_that_is_gone_is_one_line(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    user_data = machine.user_data

    def bundle_gone() -> bytes:
        for key in machine.keys("code/"):
            machine.s3.delete_object(Bucket=machine.bucket, Key=key)
        return user_data().replace(b"0.2 * 2**attempt", b"0")  # no wait between two tries

    monkeypatch.setattr(machine, "user_data", bundle_gone)
    machine.start()
    machine.wait_until_off()
    assert machine.exit_code() == 1
    log = machine.read(f"attempts/AROA1:i-1/{RUN}/1/0/bootstrap.log").decode()
    # S3 answers 403 for a missing key where the role may not list.
    told = r"code/\w{64}\.whl can't be fetched \(HTTP Error 403: Forbidden\): launch again, which uploads it"
    assert re.fullmatch(told, last_complaint(log)) and "Traceback" not in log
    assert log.rstrip().endswith("powering off, exit code 1")


def test_a_refused_power_off_leaves_a_log_and_a_lease_that_ends(
    machine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then whoever reads its result terminates it, or its timer, its schedules and the sweeper do."""
    prepare = instance.prepare_sandbox

    def refuses(sandbox: Path) -> None:
        prepare(sandbox)
        stub = sandbox / "bin/poweroff"
        stub.write_text(stub.read_text().replace("set -euo pipefail", "echo no power-off >&2; exit 1"))

    monkeypatch.setattr(instance, "prepare_sandbox", refuses)
    node = machine.start()
    machine.wait_for((machine.sandbox / "run/user-data-exit").exists)
    assert node.poll() != "poweroff" and machine.log().count("no power-off") == 2, "by systemd, and by force"
    assert machine.result()["state"] == "done"
    log = b"".join(machine.read(key) for key in machine.keys(f"attempts/AROA1:i-1/{RUN}/1/0/log/"))
    assert log.rstrip().endswith(b"ended done, exit code 0")
    lease = read_lease(machine.read(f"live/AROA1:i-1/{RUN}/1/0.json"), datetime.now(timezone.utc))
    known: dict[str, Any] = {"launched_at": lease.at, "lease_until": lease.lease_until}
    assert silent(**known, now=lease.lease_until + timedelta(seconds=31)), "the sweeper ends it"
    assert armed(machine) == machine.deadline, "and its timer tries again"


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
    assert last_complaint(log).startswith("the image has no /nowhere/bin/python: set image_line")
    assert log.rstrip().endswith("powering off, exit code 103")


def test_the_lease_and_the_log_come_before_the_slow_stages_end(machine: Any, slow_image: Path) -> None:
    machine.image_python = str(slow_image)
    machine.start()
    lease = machine.wait_for(lambda: machine.keys("live/"))
    assert lease == [f"live/AROA1:i-1/{RUN}/1/0.json"]
    told = read_lease(machine.read(lease[0]), datetime.now(timezone.utc))
    assert (told.instance_id, told.lease_until) == ("i-1", told.at + LEASE)
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


def test_its_tools_are_not_those_that_differ_between_coreutils() -> None:
    """Ubuntu's uutils read other dates, and their `timeout` and `tail` handle signals and processes their way."""
    volumes = BOOTSTRAP.with_name("volumes.sh").read_text()
    code = "\n".join(
        line for line in (BOOTSTRAP.read_text() + volumes).splitlines() if line.lstrip()[:1] != "#"
    )
    assert not re.findall(r"(?<![\w.\"'-])(?:date|timeout|tail|stat|numfmt) +[-\"$\d]", code)


def helper(*words: str, seconds: str) -> list[str]:
    """Return the command line by which the bootstrap bounds a command."""
    return [sys.executable, "-I", "-c", HELPER, "run", seconds, *words]


@pytest.mark.parametrize(("words", "code"), [("exit 7", 7), ("kill -9 $$", 137), ("true", 0)])
def test_a_bounded_command_ends_with_its_own_code(words: str, code: int) -> None:
    assert subprocess.run(helper("bash", "-c", words, seconds="500")).returncode == code


@pytest.mark.parametrize("late", [True, False])
def test_a_bounded_command_ends_with_its_group(late: bool) -> None:
    """A late one, and one whose helper is told to end: what it started in the background ends, too."""
    command = helper(
        "bash", "-c", "(trap '' TERM; echo $BASHPID; sleep 600) & wait", seconds="2" if late else "600"
    )
    with subprocess.Popen(command, stdout=subprocess.PIPE) as bounded:
        assert bounded.stdout is not None
        pid = int(bounded.stdout.readline())
        if not late:
            bounded.terminate()
        assert bounded.wait(500) == (124 if late else 143)
    await_end_of({pid})


def test_a_command_ends_that_began_as_its_helper_was_told_to_end() -> None:
    words = "kill -TERM $PPID; (trap '' TERM; echo $BASHPID; sleep 600) & wait"
    for _ in range(5):  # the helper may be making its child yet, or wait for it
        with subprocess.Popen(helper("bash", "-c", words, seconds="600"), stdout=subprocess.PIPE) as bounded:
            assert bounded.wait(500) == 143
            assert bounded.stdout is not None
            line = bounded.stdout.readline()  # none, if it ended before
        await_end_of({int(line)} if line else set())


@pytest.mark.parametrize(
    ("vendor", "bios", "is_ours"),
    [
        ("Amazon EC2", "1.0", True),
        ("Xen", "4.11.amazon", True),
        ("Xen", "4.11", False),
        ("QEMU", "1.16", False),
    ],
)
def test_nitro_and_xen_instances_are_told_from_others(
    tmp_path, vendor: str, bios: str, is_ours: bool
) -> None:
    (tmp_path / "sys_vendor").write_text(f"{vendor}\n")
    (tmp_path / "bios_version").write_text(f"{bios}\n")
    script = BOOTSTRAP.read_text().removesuffix("\nmain\n")
    done = subprocess.run(
        ["/bin/bash", "-c", f"{script}\nis_ec2 {tmp_path} || exit 9"], env={}, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0 if is_ours else 9, "")


def armed(machine: Any) -> datetime:
    line = next(line for line in machine.timer().splitlines() if line.startswith("OnCalendar="))
    return parse_calendar(line.removeprefix("OnCalendar="))
