"""The first process of a rehearsal's node: runs the user data and adopts every descendant.

Run by `fork_server` for `instance.start_node`, never imported by the node. Its process is also the node's
fork server: `main` returns in each fork of it, which then becomes the Python that the node asked for.

It is a child subreaper (Linux), so processes that double fork or call setsid stay below it in the process
tree and can be found and ended. It exits when no descendant is left, and ends the node itself if its server
is gone.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
POLL_SECONDS = 0.1
GRACE_SECONDS = 5.0


def become_subreaper() -> None:
    """Adopt every orphan among the descendants of this process."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def start_user_data(user_data: Path, log: Path) -> int:
    """Run the user data in a session of its own, its output appended to `log`; return its process id, which
    is its group.
    """
    pid = os.fork()
    if pid:
        return pid
    os.setsid()
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execv(user_data, [str(user_data)])
    except OSError as error:
        os.write(2, f"user data can't be run: {error}\n".encode())
        os._exit(127)


def descendants() -> list[int]:
    """Return every process below this one, in no order."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with suppress(OSError):  # it has just ended
                # A name is cut after 15 bytes, maybe in the middle of a letter.
                parent = int((folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(folder.name))
    pids = children.get(os.getpid(), [])
    for pid in pids:  # grows as it goes
        pids.extend(children.get(pid, []))
    return pids


def end_all(forks: Any) -> None:
    """End every descendant: SIGTERM and SIGCONT, five seconds, SIGKILL until none is left."""
    deadline = time.monotonic() + GRACE_SECONDS
    signal_all(signal.SIGTERM, signal.SIGCONT)
    while forks.collect() is not None:
        if time.monotonic() > deadline:
            signal_all(signal.SIGKILL)
        time.sleep(POLL_SECONDS)


def signal_all(*numbers: int) -> None:
    """Send signals to every descendant."""
    for pid in descendants():
        for number in numbers:
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def main(user_data: Path, log: Path, forks: Any) -> Any:
    """Run the user data and wait until it and all its descendants have ended. In each fork, returns its
    client's order.
    """
    server = os.getppid()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # this process ends last
    become_subreaper()
    user_data_pid = start_user_data(user_data, log)
    print(user_data_pid, flush=True)
    sys.stdout.close()
    while (ended := forks.collect()) is not None:
        if user_data_pid in ended:
            # Read by NodeProcess.poll; by rename, so that it is never seen half written.
            note = user_data.parent / "user-data-exit"
            note.with_suffix(".new").write_text(str(ended[user_data_pid]))
            note.with_suffix(".new").rename(note)
        if os.getppid() != server:  # its AWS was killed: end with it
            end_all(forks)
            return None
        if (order := forks.step()) is not None:
            return order
    return None
