"""volumes.sh with stubs of the tools that it calls: which disks it takes, and that a failure is said and ends
nothing.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

VOLUMES = Path(__file__).parents[3] / "trainer/node/volumes.sh"
STORE, EBS = "Amazon EC2 NVMe Instance Storage", "Amazon Elastic Block Store"
TOOLS = ("bash", "mkdir", "timeout")


@pytest.fixture
def machine(tmp_path: Path) -> Callable[..., tuple[str, list[str]]]:
    """Run volumes.sh on a machine with these disks, where tools only note their calls; return its output and
    these.
    """
    calls, tools = tmp_path / "calls", tmp_path / "bin"
    tools.mkdir()
    for tool in TOOLS:
        (tools / tool).symlink_to(f"/usr/bin/{tool}")

    def run(
        *words: str, failing: str = "", missing: str = "", mounted: str = "", **disks: str
    ) -> tuple[str, list[str]]:
        for name, model in disks.items():
            (device := tmp_path / "sys/block" / name / "device").mkdir(parents=True)
            (device / "model").write_text(f"{model:<40}\n")
        for tool in {"mdadm", "mkfs.ext4", "mount", "findmnt", "mount.efs"} - {missing}:
            code = (
                f'[[ "$*" == *{mounted}* ]]'
                if tool == "findmnt" and mounted
                else "exit 1"
                if tool in ("findmnt", failing)
                else ""
            )
            (tools / tool).write_text(
                f'#!/bin/bash\n[[ {tool} == findmnt ]] || echo "{tool} $*" >> {calls}\n{code}\n'
            )
            (tools / tool).chmod(0o755)
        told = [*words, str(tmp_path / "sys")] if words[0] == "disks" else list(words)
        done = subprocess.run(
            ["/bin/bash", str(VOLUMES), *told],
            env={"PATH": str(tools)},
            capture_output=True,
            text=True,
            timeout=500,
        )
        assert done.returncode == 0, done.stderr
        return done.stderr, calls.read_text().splitlines() if calls.exists() else []

    return run


def test_local_disks_become_one_volume_without_the_root_disk(
    machine: Callable[..., tuple[str, list[str]]], tmp_path: Path
) -> None:
    said, calls = machine("disks", f"{tmp_path}/disks", nvme0n1=EBS, nvme1n1=STORE, nvme2n1=STORE)
    assert calls == [
        "mdadm --create /dev/md/mayfly --run --level=0 --raid-devices=2 /dev/nvme1n1 /dev/nvme2n1",
        "mkfs.ext4 -q -E nodiscard,lazy_itable_init=1 /dev/md/mayfly",
        f"mount -o noatime /dev/md/mayfly {tmp_path}/disks",
    ]
    assert "2 local disks" in said


def test_one_local_disk_needs_no_raid(machine: Callable[..., tuple[str, list[str]]], tmp_path: Path) -> None:
    _, calls = machine("disks", f"{tmp_path}/disks", nvme0n1=EBS, nvme1n1=STORE)
    assert [call.split()[0] for call in calls] == ["mkfs.ext4", "mount"] and calls[1].endswith(
        f"/dev/nvme1n1 {tmp_path}/disks"
    )


def test_a_type_without_local_disks_is_left_as_it_is(
    machine: Callable[..., tuple[str, list[str]]], tmp_path: Path
) -> None:
    said, calls = machine("disks", f"{tmp_path}/disks", nvme0n1=EBS)
    assert "no local disk" in said and not calls and not list(tmp_path.glob("disks*"))


def test_held_or_mounted_disks_are_left_alone(
    machine: Callable[..., tuple[str, list[str]]], tmp_path: Path
) -> None:
    (tmp_path / "sys/block/nvme1n1/holders/dm-0").mkdir(parents=True)  # LVM, as the Deep Learning AMI has it
    (tmp_path / "sys/block/nvme2n1/nvme2n1p1").mkdir(parents=True)
    _, calls = machine(
        "disks", f"{tmp_path}/disks", mounted="/dev/nvme3n1", nvme1n1=STORE, nvme2n1=STORE, nvme3n1=STORE
    )
    assert not calls


@pytest.mark.parametrize(
    ("failing", "why"),
    [("mdadm", "could not be joined"), ("mkfs.ext4", "formatted"), ("mount", "could not be mounted")],
)
def test_disks_that_fail_are_said_and_the_node_goes_on(
    machine: Callable[..., tuple[str, list[str]]], tmp_path: Path, failing: str, why: str
) -> None:
    said, _ = machine("disks", f"{tmp_path}/disks", failing=failing, nvme1n1=STORE, nvme2n1=STORE)
    assert why in said and why in (tmp_path / "disks.failed").read_text()


def test_the_cache_is_mounted_by_tls_role_and_access_point(
    machine: Callable[..., tuple[str, list[str]]], tmp_path: Path
) -> None:
    _, calls = machine("cache", "fs-01:fsap-02", f"{tmp_path}/cache", "9")
    assert calls == [f"mount -t efs -o tls,iam,accesspoint=fsap-02,soft,timeo=100 fs-01 {tmp_path}/cache"]
    assert not (tmp_path / "cache.failed").exists()


@pytest.mark.parametrize(
    ("broken", "why"), [({"failing": "mount"}, "EFS fs-01"), ({"missing": "mount.efs"}, "no mount.efs")]
)
def test_a_cache_that_cannot_be_mounted_is_only_reported(
    machine: Callable[..., tuple[str, list[str]]], tmp_path: Path, broken: dict[str, str], why: str
) -> None:
    said, _ = machine("cache", "fs-01:fsap-02", f"{tmp_path}/cache", "9", **broken)
    assert why in said and why in (tmp_path / "cache.failed").read_text()
