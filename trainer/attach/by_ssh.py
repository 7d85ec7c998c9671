"""Run a command or a shell, or forward ports, over SSH with this process's streams."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from threading import Event

import paramiko

from trainer.attach.forwarding import ForwardedPort
from trainer.attach.host_keys import HostKey
from trainer.attach.request import AttachRequest
from trainer.attach.shell import run_command, run_shell
from trainer.attach.ssh import connection
from trainer.base.errors import ConnectionFailed, UsageError

LOOK_SECONDS = 1.0
STDIN, STDOUT = 0, 1


def attach_by_ssh(host: str, request: AttachRequest, *, pinned: Sequence[HostKey], key_file: Path) -> int:
    """Forward ports until Ctrl-C, or run a line or a shell; return its exit code.

    A command gets a terminal if stdin and stdout are one. Raises a TrainerError.
    """
    terminal = os.isatty(STDIN) and os.isatty(STDOUT)
    if not request.line and not request.forwards and not terminal:
        raise UsageError("a shell needs a terminal", do="Name a command: mayfly attach RUN -- COMMAND")
    try:
        with connection(host, pinned=pinned, key_file=key_file) as transport:
            if request.forwards:
                return carry_ports(transport, request)
            if terminal:
                return run_shell(transport, request.line, keyboard=STDIN, screen=STDOUT)
            streams = {"stdout": sys.stdout.buffer, "stderr": sys.stderr.buffer}
            return run_command(transport, request.line, stdin=STDIN, **streams)
    except (paramiko.SSHException, EOFError) as error:
        why = str(error) or type(error).__name__
        raise ConnectionFailed(
            "the machine ended the connection", why=why, do="mayfly status shows whether it is up."
        ) from error


def carry_ports(transport: paramiko.Transport, request: AttachRequest) -> int:
    """Forward ports until Ctrl-C, then return 0. Raises ConnectionFailed if the connection ends before."""
    never = Event()
    with ExitStack() as ports:
        for forward in request.forwards:
            ports.enter_context(ForwardedPort(transport, forward))
            request.announce(forward)
        try:
            while transport.is_active():
                never.wait(LOOK_SECONDS)
        except KeyboardInterrupt:  # the user ends it
            return 0
    raise ConnectionFailed(
        "the connection to the machine has ended", do="mayfly status shows whether it is up."
    )
