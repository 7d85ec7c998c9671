"""Describe a process that hangs, by /proc: its state, where it waits in the kernel, its command line. End it,
after it has written its Python stacks if it can.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

ABORT_SECONDS = 5.0  # for its stacks, between SIGABRT and SIGKILL
MOST_COMMAND = 200  # characters of a command line
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
MOST_STACK = 12  # frames of a kernel stack


def state_of(pid: int) -> str:
    """Return one line about a process; '' where Linux's /proc does not tell, as on a Mac or after its end."""
    folder = Path("/proc") / str(pid)
    about = _fields(folder)
    if "State" not in about:
        return ""
    command = _text(folder / "cmdline").replace("\0", " ").strip()[:MOST_COMMAND]
    frames = [line.split()[-1] for line in _text(folder / "stack").splitlines()[:MOST_STACK] if line.strip()]
    parts = {
        "state": about["State"],
        "threads": about.get("Threads", ""),
        "waits in": _text(folder / "wchan").strip("0\n "),
        "kernel stack": " < ".join(frames),  # root only
        "command": command,
    }
    return f"process {pid}: " + ", ".join(f"{name} {text}" for name, text in parts.items() if text)


def ticks_of(pid: int) -> int:
    """Return the processor ticks that a process has used (proc(5), fields 14 and 15), or 0."""
    with suppress(ValueError, IndexError):
        fields = _text(Path("/proc") / str(pid) / "stat").rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])
    return 0


def write_stacks_at_abort() -> None:
    """Have this process write its Python stacks to its standard error when `abort` ends it."""
    faulthandler.enable(file=2)


def abort(pid: int) -> bool:
    """Have a process write its stacks and end, a stopped one too; return False if it would write none: it has
    ended, or does not handle SIGABRT, as Python's faulthandler does.
    """
    caught = _fields(Path("/proc") / str(pid)).get("SigCgt", "0")
    if not int(caught, 16) >> (signal.SIGABRT - 1) & 1:
        return False
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGABRT)
        os.kill(pid, signal.SIGCONT)
    return True


def _fields(folder: Path) -> dict[str, str]:
    lines = _text(folder / "status").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""


def die_with_the_parent() -> None:
    """Have the kernel kill this process, even a stopped one, when its parent ends for any reason.
    Linux only.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
