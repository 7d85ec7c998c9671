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
TOOLS = ("bash", "dirname", "env", "mkdir", "readlink")
Machine = Callable[..., tuple[str, list[str]]]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
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
            code = "exit 1" if tool in ("findmnt", failing) else ""
            if tool == "findmnt" and mounted:
                code = f'[[ "$*" == *{mounted}* ]]'
            noted = "" if tool == "findmnt" else f'echo "{tool} $*" >> {calls}'
            (tools / tool).write_text(f"#!/bin/bash\n{noted}\n{code}\n")
            (tools / tool).chmod(0o755)
        told = [*words, str(tmp_path / "sys")] if words[0] == "disks" else list(words)
        command, env = ["/bin/bash", str(VOLUMES), *told], {"PATH": str(tools)}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=500)
        assert done.returncode == 0, done.stderr
        return done.stderr, calls.read_text().splitlines() if calls.exists() else []

    return run


def test_local_disks_become_one_volume_without_the_root_disk(machine: Machine, tmp_path: Path) -> None:
    said, calls = machine("disks", f"{tmp_path}/disks", nvme0n1=EBS, nvme1n1=STORE, nvme2n1=STORE)
    assert calls == [
        "mdadm --create /dev/md/mayfly --run --level=0 --raid-devices=2 /dev/nvme1n1 /dev/nvme2n1",
        "mkfs.ext4 -q -E nodiscard,lazy_itable_init=1 /dev/md/mayfly",
        f"mount -o noatime /dev/md/mayfly {tmp_path}/disks",
    ]
    assert "2 local disks" in said


def test_one_local_disk_needs_no_raid(machine: Machine, tmp_path: Path) -> None:
    _, calls = machine("disks", f"{tmp_path}/disks", nvme0n1=EBS, nvme1n1=STORE)
    assert [call.split()[0] for call in calls] == ["mkfs.ext4", "mount"] and calls[1].endswith(
        f"/dev/nvme1n1 {tmp_path}/disks"
    )


def test_a_type_without_local_disks_is_left_as_it_is(machine: Machine, tmp_path: Path) -> None:
    said, calls = machine("disks", f"{tmp_path}/disks", nvme0n1=EBS)
    assert "no local disk" in said and not calls and not list(tmp_path.glob("disks*"))


def test_held_or_mounted_disks_are_left_alone(machine: Machine, tmp_path: Path) -> None:
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
    machine: Machine, tmp_path: Path, failing: str, why: str
) -> None:
    said, _ = machine("disks", f"{tmp_path}/disks", failing=failing, nvme1n1=STORE, nvme2n1=STORE)
    assert why in said and why in (tmp_path / "disks.failed").read_text()


def test_the_cache_is_mounted_by_tls_role_and_access_point(machine: Machine, tmp_path: Path) -> None:
    _, calls = machine("cache", "fs-01:fsap-02", f"{tmp_path}/cache", "env")
    assert calls == [f"mount -t efs -o tls,iam,accesspoint=fsap-02,soft,timeo=100 fs-01 {tmp_path}/cache"]
    assert not (tmp_path / "cache.failed").exists()


def test_an_image_without_the_mount_helper_installs_it_first(machine: Machine, tmp_path: Path) -> None:
    bound = tmp_path / "bound"  # the command that bounds others: it notes them, and installs as they would
    bound.write_text(
        f"""#!/bin/bash
echo "$*" >> {tmp_path}/bounded
if [[ $1 == */python3 ]]; then echo "#!/bin/bash" > {tmp_path}/bin/mount.efs; chmod 755 {tmp_path}/bin/mount.efs; fi
"""
    )
    (tmp_path / "bin/chmod").symlink_to("/usr/bin/chmod")
    bound.chmod(0o755)
    said, _ = machine("cache", "fs-01:fsap-02", f"{tmp_path}/cache", str(bound), missing="mount.efs")
    options = "tls,iam,accesspoint=fsap-02,soft,timeo=100,stunnel"
    assert (tmp_path / "bounded").read_text().splitlines() == [
        f"/usr/bin/python3 -I {VOLUMES.with_name('efs_client.py')} install",
        f"mount -t efs -o {options} fs-01 {tmp_path}/cache",
    ]
    assert f"the cache is at {tmp_path}/cache" in said


@pytest.mark.parametrize(
    ("broken", "bound", "why"),
    [
        ({"failing": "mount"}, ["env"], "EFS fs-01"),
        (
            {"missing": "mount.efs"},
            ["bash", "-c", "echo no way out; exit 1"],
            "(amazon-efs-utils): no way out",
        ),
    ],
)
def test_a_cache_that_cannot_be_mounted_is_only_reported(
    machine: Machine, tmp_path: Path, broken: dict[str, str], bound: list[str], why: str
) -> None:
    said, _ = machine("cache", "fs-01:fsap-02", f"{tmp_path}/cache", *bound, **broken)
    assert why in said and why in (tmp_path / "cache.failed").read_text()
