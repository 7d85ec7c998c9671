"""volumes.sh with stubs of the tools that it calls: which disks it takes, and that a failure is said and ends
nothing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
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


# In a mount namespace of its own, whose /dev has names of instance store for the loop devices of this machine.
REAL = """
set -euo pipefail
folder=$1 && shift
mkdir "$folder/dev" "$folder/disks" && mount -t tmpfs none "$folder/dev"
mknod "$folder/dev/null" c 1 3 && mknod "$folder/dev/urandom" c 1 9
ln -s /proc/self/fd "$folder/dev/fd"
number=1
for loop in "$@"; do
  mknod "$folder/dev/nvme${number}n1" b 7 "${loop#/dev/loop}"
  mkdir -p "$folder/sys/block/nvme${number}n1/device"
  echo "Amazon EC2 NVMe Instance Storage" > "$folder/sys/block/nvme${number}n1/device/model"
  number=$((number + 1))
done
mount --bind "$folder/dev" /dev
ends() { umount "$folder/disks" || true; [[ ! -e /dev/md/mayfly ]] || mdadm --stop /dev/md/mayfly; }
trap ends EXIT
MDADM_NO_UDEV=1 bash VOLUMES disks "$folder/disks" "$folder/sys" < /dev/null
[[ ! -e $folder/disks.failed ]] && echo kept > "$folder/disks/file"
findmnt --noheadings --output SOURCE,FSTYPE,OPTIONS "$folder/disks"
df --output=size --block-size=M "$folder/disks"
"""


@pytest.fixture
def loop_devices(tmp_path: Path) -> Iterator[Callable[[int], list[str]]]:
    """Return a function that makes so many loop devices of 64 MB, which go again with the test."""
    made: list[str] = []
    if os.geteuid() != 0 or not all(map(shutil.which, ("losetup", "mkfs.ext4", "unshare"))):
        pytest.skip("needs root, losetup, mkfs.ext4 and unshare")

    def make(count: int) -> list[str]:
        for number in range(count):
            (tmp_path / f"disk{number}").write_bytes(b"")
            os.truncate(tmp_path / f"disk{number}", 64 << 20)
            found = subprocess.run(
                ["losetup", "--find", "--show", f"{tmp_path}/disk{number}"], capture_output=True, text=True
            )
            if found.returncode:
                pytest.skip(f"no loop device can be made here: {found.stderr.strip()}")
            made.append(found.stdout.strip())
        return made

    yield make
    for device in made:
        subprocess.run(["losetup", "--detach", device], check=True)


@pytest.mark.parametrize("count", [1, 2])
def test_real_disks_are_joined_formatted_and_mounted(
    loop_devices: Callable[[int], list[str]], tmp_path: Path, count: int
) -> None:
    if count > 1 and (not Path("/proc/mdstat").exists() or shutil.which("mdadm") is None):
        pytest.skip("needs mdadm, and a kernel with md")
    script = REAL.replace("VOLUMES", str(VOLUMES))
    command = ["unshare", "--mount", "bash", "-c", script, "bash", str(tmp_path), *loop_devices(count)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stderr
    mounted, _, size = done.stdout.strip().splitlines()
    assert mounted.split()[0].startswith("/dev/nvme1n1" if count == 1 else "/dev/md")
    assert mounted.split()[1] == "ext4" and "noatime" in mounted
    assert int(size.strip("M ")) > 40 * count
    assert f"{count} local disks at {tmp_path}/disks" in done.stderr


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
