"""Leases on the embedded AWS, held by processes of this machine; the server may end without any.

A lease ends with its holder, a process that is identified by its id and its start time. Pure but for /proc.
"""

from __future__ import annotations

import os
import threading
import uuid
from dataclasses import dataclass, field
from pathlib import Path

from trainer.rehearsal.processes import parent_of, start_ticks

IDLE_SECONDS = 5.0
FIRST_LEASE_SECONDS = 30.0  # a server without a lease ends so long after its start


@dataclass(kw_only=True)
class Leases:
    """The leases on one server. Instants are seconds of a monotonic clock, passed in."""

    _holders: dict[str, tuple[int, str]] = field(default_factory=dict)
    _idle_since: float | None = None
    _ever_leased: bool = False
    _ended: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, pid: int) -> str | None:
        """Return a new lease for a process, or None if the server is about to end or the process has
        ended.
        """
        started = start_ticks(pid)
        with self._lock:
            if self._ended or not started:
                return None
            lease = uuid.uuid4().hex
            self._holders[lease] = (pid, started)
            self._ever_leased = True
            return lease

    def release(self, lease: str) -> None:
        """Release a lease."""
        with self._lock:
            self._holders.pop(lease, None)

    def end(self) -> None:
        """Let the server end despite leases. Takes no lock: signal handlers call it."""
        self._ended = True

    def over(self, now: float, *, instances_alive: bool) -> bool:
        """Return whether the server may end: five seconds after the last lease and instance. After True it
        grants no lease.
        """
        with self._lock:
            self._holders = {
                lease: who for lease, who in self._holders.items() if start_ticks(who[0]) == who[1]
            }
            if self._ended:
                return True
            if self._holders or instances_alive:
                self._idle_since = None
                return False
            if self._idle_since is None:
                self._idle_since = now
            patience = IDLE_SECONDS if self._ever_leased else FIRST_LEASE_SECONDS
            self._ended = now - self._idle_since >= patience
            return self._ended


def shell_of_our_output() -> int:
    """Return the process id of the shell that gets what we print: the nearest ancestor whose output is not
    our own pipe.

    A shell may run `$(...)` in a child of its own, which ends with the command.
    """
    ours, pid = _output_of("self"), os.getppid()
    while pid > 1 and ours.startswith("pipe:") and _output_of(str(pid)) == ours:
        pid = parent_of(pid)
    return pid


def _output_of(process: str) -> str:
    try:
        return str(Path(f"/proc/{process}/fd/1").readlink())
    except OSError:  # another user's
        return ""
