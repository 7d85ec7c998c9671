"""Processes as the kernel lists them."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path


def alive(pid: int) -> bool:
    """Return whether a process runs; one that has ended and waits for its parent does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def await_end_of(pids: set[int], *, seconds: float = 500.0) -> None:
    """Wait until none of these processes runs any more."""
    deadline = time.monotonic() + seconds
    while running := {pid for pid in pids if alive(pid)}:
        assert time.monotonic() < deadline, f"{running} outlive their training"
        time.sleep(0.02)


def await_stop_of(pid: int, *, seconds: float = 500.0) -> None:
    """Wait until SIGSTOP has stopped every thread of a process."""
    deadline = time.monotonic() + seconds
    stats = list(Path(f"/proc/{pid}/task").glob("*/stat"))
    while any(stat.read_text().rpartition(")")[2].split()[0] != "T" for stat in stats):
        assert time.monotonic() < deadline, f"{pid} does not stop"
        time.sleep(0.02)


@contextmanager
def cut_name(folder: Path, variables: Mapping[str, str]) -> Iterator[int]:
    """Run a process whose name the kernel cuts in the middle of a letter, and yield its id."""
    program = folder / "тренировка"
    program.symlink_to("/bin/sleep")
    child = subprocess.Popen([program, "1000"], env=variables, start_new_session=True)
    try:
        while not Path(f"/proc/{child.pid}/environ").read_bytes():  # it takes a moment to have one
            time.sleep(0.001)
        yield child.pid
    finally:
        child.kill()
        child.wait()


def descendants(pid: int) -> list[int]:
    """Return the processes below one, by /proc."""
    children = []
    for thread in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            children += [int(child) for child in thread.read_text().split()]
    return [one for child in children for one in (child, *descendants(child))]
