"""Processes of a node, found in /proc by its supervisor or by its marks, and signalled only if their id was
not reused.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

POLL_SECONDS = 0.1  # each poll reads all of /proc, in some milliseconds
COMM_LENGTH = 15  # of a process's name, as Linux keeps it
Member = tuple[int, str]  # a process: its id and its start, since ids are reused


def end(members: Callable[[], set[Member]], *, grace_seconds: float) -> None:
    """End every member: SIGTERM once for each present or new one within the grace, then SIGKILL until none is
    left.
    """
    deadline = time.monotonic() + grace_seconds
    told: set[Member] = set()
    while time.monotonic() < deadline and (left := members()):
        # A process may be forked while others are being signalled.
        send_signals(left - told, signal.SIGTERM, signal.SIGCONT)
        told |= left
        time.sleep(POLL_SECONDS)
    while left := members():
        send_signals(left, signal.SIGKILL)
        time.sleep(POLL_SECONDS)


def send_signals(members: set[Member], *numbers: int) -> None:
    """Send signals to processes that still have the same start."""
    for pid, started in members:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            if start_ticks(pid) == started:
                for number in numbers:
                    signal.pidfd_send_signal(descriptor, number)
        except ProcessLookupError:
            pass  # ended meanwhile
        finally:
            os.close(descriptor)


def members_of(instance_id: str, sandbox: Path, supervisor: Member | None) -> set[Member]:
    """Return the live processes of a node: below its supervisor, or carrying its marks in their environment.

    The tree is complete while the supervisor lives, since it is a subreaper; afterwards the marks find the
    rest. The environment of a fork can't be read from outside: it is recognized by its name and its folder.
    """
    processes = {process.pid: process for process in _processes() if process.state not in "ZX"}
    lives = supervisor and supervisor[0] in processes and processes[supervisor[0]].started == supervisor[1]
    below = {supervisor[0]} if supervisor and lives else set()
    grown = True
    while grown:
        more = {pid for pid, process in processes.items() if process.parent in below and pid not in below}
        below |= more
        grown = bool(more)
    marks = {f"MAYFLY_INSTANCE={instance_id}".encode(), f"MAYFLY_ROOT={sandbox}".encode()}
    return {
        (pid, process.started)
        for pid, process in processes.items()
        if pid in below
        or (process.name == instance_id[:COMM_LENGTH] and process.is_in(sandbox))
        or marks <= process.variables()
    }


@dataclass(frozen=True, kw_only=True)
class Process:
    """One process, as /proc/PID/stat shows it."""

    pid: int
    name: str
    state: str
    parent: int
    started: str

    def variables(self) -> set[bytes]:
        """Return its environment, NAME=value each."""
        try:
            return set(Path(f"/proc/{self.pid}/environ").read_bytes().split(b"\0"))
        except OSError:  # ended meanwhile, or another user's
            return set()

    def is_in(self, folder: Path) -> bool:
        """Return whether it works in a folder, or below it."""
        try:
            return Path(f"/proc/{self.pid}/cwd").readlink().is_relative_to(folder)
        except OSError:
            return False


def _processes() -> Iterator[Process]:
    """Yield every process of this user."""
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            mine = folder.stat().st_uid == os.geteuid()
        except OSError:  # ended meanwhile
            continue
        if mine and (stat := _stat(int(folder.name))):
            yield Process(
                pid=int(folder.name), name=stat[0], state=stat[1], parent=int(stat[2]), started=stat[20]
            )


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the command's name on: name, state, parent, group ...; empty
    without any.
    """
    try:
        # The name is cut at COMM_LENGTH, maybe in the middle of a letter.
        before, _, after = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")
    except OSError:
        return []
    return [before.partition("(")[2], *after.split()]


def parent_of(pid: int) -> int:
    """Return the id of a process's parent; 0 for a missing process."""
    stat = _stat(pid)
    return int(stat[2]) if stat else 0


def start_ticks(pid: int) -> str:
    """Return the start time of a process in clock ticks since boot; '' for a zombie or a missing process."""
    stat = _stat(pid)
    return stat[20] if stat and stat[1] not in "ZX" else ""
