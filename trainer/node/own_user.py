"""The user that a command runs as: the agent's, or one of its own without the agent's rights, if the agent is
root on EC2.

Such a user can't read the agent's files, and a firewall rule keeps it from instance metadata, where
credentials are. The rule is tested before the command runs. In a rehearsal it is the user of the desk.
"""

from __future__ import annotations

import os
import pwd
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trainer.base.errors import ConfigError

USER = "mayfly-script"
METADATA = ("169.254.169.254", 80)
METADATA_V6 = "fd00:ec2::254"  # answers only if a launch template enables it; ours does not
KILL_SECONDS = 10.0
ETC, DENIED = Path("/etc"), ("cron.deny", "at.deny")
_EXISTS = 9  # useradd's exit code for a name that is taken
_PYTHON = "/usr/bin/python3"  # Ubuntu's own, which every user may run


@dataclass(frozen=True, kw_only=True)
class OwnUser:
    """A user, and the processes that it has."""

    uid: int
    gid: int

    def give(self, *folders: Path) -> None:
        """Make this user the owner of folders and their contents.

        From the inside out and by descriptors: other processes of the user may be at work, and put a link in
        the place of what they own already.
        """
        for folder in folders:
            for _, names, files, here in os.fwalk(folder, topdown=False):
                for name in (*names, *files):
                    os.chown(name, self.uid, self.gid, dir_fd=here, follow_symlinks=False)
            os.chown(folder, self.uid, self.gid)

    def kill_all(self, *marks: str) -> bool:
        """Kill every process of this user, or with marks those that have one; return whether none is left."""
        ends = time.monotonic() + KILL_SECONDS
        while pids := list(self.processes(*marks)):
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if time.monotonic() > ends:
                return False
            time.sleep(0.02)  # killed processes take a moment to end
        return True

    def processes(self, *marks: str) -> Iterator[int]:
        """Yield the ids of its processes, but for this one. With marks, such as NAME=/a/path, those with a
        variable in their environment that is one of them, or is a path below it.
        """
        for folder in Path("/proc").iterdir():
            if folder.name.isdecimal() and int(folder.name) != os.getpid():
                with suppress(OSError):  # it has just ended
                    # Look at all its uids: the effective one of a set-uid program is root's.
                    # A name is cut after 15 bytes, maybe in the middle of a letter.
                    lines = (folder / "status").read_text(errors="replace").splitlines()
                    about = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
                    if str(self.uid) not in about["Uid"].split() or about["State"][0] in "ZX":
                        continue
                    if not marks or _has_mark((folder / "environ").read_bytes(), marks):
                        yield int(folder.name)


def _has_mark(variables: bytes, marks: Sequence[str]) -> bool:
    known = variables.split(b"\0")
    return any(one == mark or one.startswith(mark + b"/") for one in known for mark in map(str.encode, marks))


def agents_user() -> OwnUser:
    """Return the user of this process."""
    return OwnUser(uid=os.geteuid(), gid=os.getegid())


def make_own_user(*, metadata: bool) -> OwnUser | None:
    """Return a command's own user, barred from instance metadata unless it may use it; None if the agent is
    not root. Raises ConfigError.
    """
    if os.geteuid() != 0:
        return None
    made = _run(f"useradd --system --user-group --no-create-home --shell /usr/sbin/nologin {USER}")
    if made not in (0, _EXISTS):
        why, do = f"useradd ended with {made}", "Choose another image_line."
        raise ConfigError(f"the user {USER} can't be made", why=why, do=do)
    entry = pwd.getpwnam(USER)
    own_user = OwnUser(uid=entry.pw_uid, gid=entry.pw_gid)
    _refuse_timers()
    if metadata:
        return own_user
    rule = f"-m owner --uid-owner {own_user.uid} -j REJECT"
    refused = _run(f"iptables -I OUTPUT -d {METADATA[0]} {rule}")
    _run(f"ip6tables -I OUTPUT -d {METADATA_V6} {rule}")
    if refused or _reaches_metadata(own_user):
        why = f"its user still reaches {METADATA[0]}, despite the firewall rule"
        if refused:
            why = f"iptables ended with {refused}, so its user may reach {METADATA[0]}"
        do = "Choose an image_line whose image has iptables with its owner match."
        raise ConfigError("the script can't be kept from the machine's credentials", why=why, do=do)
    return own_user


def _refuse_timers() -> None:
    """Bar the user from cron and at, which could start its commands after its processes are killed."""
    for name in DENIED:
        place = ETC / name
        known = place.read_text().splitlines() if place.exists() else []
        if USER not in known:
            place.write_text("".join(f"{line}\n" for line in (*known, USER)))


def close_to_others(*paths: Path) -> None:
    """Make the agent's files inaccessible to other users."""
    for path in paths:
        if path.exists():
            path.chmod(0o700 if path.is_dir() else 0o600)


def leave_mount(place: Path) -> None:
    """Unmount a file system that the script's user must not see. Raises ConfigError."""
    if os.path.ismount(place) and _run(f"umount --lazy {shlex.quote(str(place))}") != 0:
        do = "Launch again, or set the stack's storage to s3."
        raise ConfigError(f"{place} can't be kept from the script", why="umount failed", do=do)


def _reaches_metadata(own_user: OwnUser) -> bool:
    asked = subprocess.run(
        [_PYTHON, "-I", "-S", "-c", f"import socket; socket.create_connection({METADATA!r}, timeout=3)"],
        user=own_user.uid,
        group=own_user.gid,
        extra_groups=[],
        cwd="/",
        env={},
        capture_output=True,
        check=False,
    )
    # 1: Python's own, for the refused connection. Anything else proves nothing.
    return asked.returncode != 1 or b"Error" not in asked.stderr


def _run(line: str) -> int:
    """Run a program without a shell, and return its exit code; 127 if it can't be run."""
    try:
        return subprocess.run(shlex.split(line), capture_output=True, check=False, timeout=60).returncode
    except (OSError, subprocess.SubprocessError):
        return 127
