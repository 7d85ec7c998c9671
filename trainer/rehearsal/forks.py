"""Start the fork server of an embedded AWS, and ask it for the first process of each node.

Owns the server's process and the handle of a fork; see `fork_server` for forks and `instance` for nodes.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from trainer.base.environment import processor_settings
from trainer.rehearsal.fork_client import send_order
from trainer.rehearsal.fork_server import listen

SERVER = Path(__file__).with_name("fork_server.py")
# OpenMP reads its own when torch is loaded. The trainer sets the same for what it starts
# (train/workers/station.py).
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "GOMP_SPINCOUNT": "1000"}


class ForkedProcess:
    """A fork with another parent: the part of subprocess.Popen that a node needs."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        first = b""
        with suppress(ConnectionResetError), connection.makefile("rb", buffering=0) as answers:
            first = answers.readline()  # alone: the exit code may have come, too
        if not first:  # it ended before it had read the order
            raise RuntimeError("the fork server forked nothing")
        self.pid: int = json.loads(first)["pid"]
        self._handle: int | None = None
        with suppress(ProcessLookupError):  # it has ended, and another process may have its number
            self._handle = os.pidfd_open(self.pid)
        self._exit: int | None = None

    def poll(self) -> int | None:
        """Return the exit code of an ended process, None while it runs."""
        if self._exit is None:
            self._connection.settimeout(0)
            with suppress(BlockingIOError):
                self._read()
        return self._exit

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit code. Raises TimeoutError after `timeout` seconds."""
        while self._exit is None:
            self._connection.settimeout(timeout)
            self._read()
        return self._exit

    def kill(self) -> None:
        """Kill it, unless it has ended."""
        if self.poll() is None and self._handle is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)

    def _read(self) -> None:
        line = self._connection.recv(64)
        # Without a line its parent was killed, and it will be, too.
        self._exit = json.loads(line)["exit"] if line else -signal.SIGKILL
        self._connection.close()
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


class ForkServerProcess:
    """A fork server of our own: a process that begins to load its libraries now, or a fork of `parent`, which
    has loaded them.

    It ends when it is closed, or when this process (or `until_ends`) does.
    """

    def __init__(
        self, parent: Path | None = None, *, until_ends: int | None = None, more_libraries: Sequence[str] = ()
    ) -> None:
        self._parent = parent
        # Short: a socket's path holds 107 bytes.
        self._folder = Path(tempfile.mkdtemp(prefix="mayfly-forks-"))
        self.path = self._folder / "socket"
        self._server: subprocess.Popen[bytes] | ForkedProcess | None = None
        try:
            self._listener = listen(self.path)
        except OSError:
            self._folder.rmdir()
            raise
        if parent is None:
            watched = str(until_ends or os.getpid())
            self._server = subprocess.Popen(
                [sys.executable, str(SERVER), str(self.path), watched, *more_libraries],
                stdin=self._listener.fileno(),
                env={**ENVIRONMENT, **processor_settings()},
                cwd="/",
                start_new_session=True,
            )
            self._listener.close()

    def start(self, arguments: Sequence[str], **options: Any) -> ForkedProcess:
        """Fork a process, by the options of `fork`, that ends by itself when this server does.

        Waits while the libraries are being loaded. Raises RuntimeError without a server.
        """
        if self._server is None and self._parent is not None:
            files = {0: self._listener.fileno(), 1: 2, 2: 2}
            own = {"environment": ENVIRONMENT, "folder": Path.cwd(), "files": files, "name": "mayfly-forks"}
            self._server = fork(self._parent, ("--serve", str(self.path)), **own)
            self._listener.close()
        return fork(self.path, arguments, detached=True, **options)

    def close(self) -> None:
        """End the server; its forks end by themselves."""
        if self._server is not None:
            self._server.kill()
            self._server.wait()
        self._listener.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def fork(path: Path, arguments: Sequence[str], **options: Any) -> ForkedProcess:
    """Have the server at `path` fork a Python, by the options of `send_order`, and return it."""
    try:
        connection = send_order(path, executable=sys.executable, arguments=arguments, **options)
    except (FileNotFoundError, ConnectionRefusedError) as error:
        raise RuntimeError(f"there is no fork server at {path}") from error
    return ForkedProcess(connection)


def start_python(
    arguments: Sequence[str],
    *,
    server: Path | None,
    environment: Mapping[str, str],
    folder: Path,
    files: Mapping[int, int],
    name: str,
    detached: bool = False,
) -> subprocess.Popen[bytes] | ForkedProcess:
    """Start a Python in a session of its own: a fork of the server's, or a new process where there is none.

    `files` are its input, output and errors, by number; only forks have the name, and may be not detached.
    """
    if server is not None:
        options: dict[str, Any] = {"environment": environment, "folder": folder, "files": files}
        return fork(server, arguments, name=name, detached=detached, **options)
    return subprocess.Popen(
        [sys.executable, *arguments],
        stdin=files[0],
        stdout=files[1],
        stderr=files[2],
        env=environment,
        cwd=folder,
        start_new_session=True,
    )
