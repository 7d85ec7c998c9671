"""The client's side of `fork_server`: orders one fork. As a script it replaces `python`, and ends as its fork
ends.

    python -I -S fork_client.py SOCKET PYTHON ARGUMENT...     # what `python` in a node's environment calls

Standard library only, and quick to load: it runs once for each interpreter of a node.
"""

from __future__ import annotations

import array
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCONT)


def send_order(
    path: Path,
    *,
    executable: str,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    files: Mapping[int, int],
    name: str,
    detached: bool = False,
) -> socket.socket:
    """Order a fork and return its connection. `files`: number in the fork -> number here.

    A detached fork outlives the connection.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(str(path))
    message = {
        "executable": executable,
        "arguments": list(arguments),
        "environment": dict(environment),
        "folder": str(folder),
        "files": list(files),
        "name": name,
        "detached": detached,
    }
    body = json.dumps(message).encode()
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files.values()).tobytes())
    connection.sendmsg([len(body).to_bytes(8, "big")], [rights])
    connection.sendall(body)
    return connection


def inherited_files() -> dict[int, int]:
    """Return the open files that a program started by this process would have, by number."""
    files = {}
    for entry in Path("/proc/self/fd").iterdir():
        number = int(entry.name)
        try:
            if os.get_inheritable(number):
                files[number] = number
        except OSError:  # the listing's own, closed by now
            continue
    return files


def main(path: str, executable: str, arguments: Sequence[str]) -> None:
    """Run one interpreter as a fork, pass signals on, and end as it ends."""
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)  # those that come before its id is known wait for it
    connection = send_order(
        Path(path),
        executable=executable,
        arguments=arguments,
        environment=os.environ,
        folder=Path.cwd(),
        files=inherited_files(),
        name=os.environ.get("MAYFLY_INSTANCE", "python"),
    )
    answers = connection.makefile("rb", buffering=0)
    first = b""
    with suppress(ConnectionResetError):  # it ended before it had read the order
        first = answers.readline()
    if not first:
        sys.exit("the fork server is gone, or can't run this")
    pid = json.loads(first)["pid"]
    # By a file: a handler would not run for a signal that comes right before the process waits in a read.
    signals, wakes = socket.socketpair()
    wakes.setblocking(False)
    signal.set_wakeup_fd(wakes.fileno())
    for number in FORWARDED:
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
    while connection not in select.select([connection, signals], [], [])[0]:
        for told in signals.recv(64):
            with suppress(ProcessLookupError):  # it has just ended, and its exit code is on its way
                os.kill(pid, told)
    last = answers.readline()
    code = json.loads(last)["exit"] if last else -signal.SIGKILL
    if code < 0:
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
