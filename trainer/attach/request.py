"""Parse the request of `mayfly attach`: a command line, or ports to forward."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trainer.base.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Forward:
    """A port of 127.0.0.1 at this desk, and the port of the node's own loopback that it leads to."""

    local: int
    remote: int


@dataclass(frozen=True, kw_only=True)
class AttachRequest:
    """A request to a machine: forward ports if there are any, else run `line` in its shell; an empty line
    opens a shell.

    `announce` is called with each port once it is forwarded.
    """

    line: str
    forwards: tuple[Forward, ...]
    announce: Callable[[Forward], None]


def parse_forward(text: str) -> Forward:
    """Read LOCAL:REMOTE, or one port for both. Raises UsageError."""
    ports = text.split(":")
    if not 1 <= len(ports) <= 2 or not all(map(_is_port, ports)):
        raise UsageError(
            f"--forward is {text}",
            why="it takes two ports, LOCAL:REMOTE",
            do="Write it as --forward 8888:8888.",
        )
    return Forward(local=int(ports[0]), remote=int(ports[-1]))


def _is_port(text: str) -> bool:
    return text.isdecimal() and len(text) <= 5 and 0 < int(text) < 65536


def shell_line(command: Sequence[str]) -> str:
    """Return a command as a shell's line: one word as it is, several quoted; '' for none, which opens a
    shell.
    """
    return command[0] if len(command) == 1 else shlex.join(command)
