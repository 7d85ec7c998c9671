"""One piece's torchrun and its ranks: receives their events, finds the error that came first, and leaves no
process behind. `rank` is what a rank runs.
"""

from __future__ import annotations

import math
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from trainer.base import environment
from trainer.base.cluster import Cluster
from trainer.base.files import HeldFolder
from trainer.base.process_state import ABORT_SECONDS, abort, state_of
from trainer.base.silence import DEAF_SECONDS
from trainer.train.checkpoint import forget
from trainer.train.observing.gpu_watch import state_of_device
from trainer.train.ranks.connection import Assignment
from trainer.train.ranks.hanging import HangWatch
from trainer.train.ranks.meeting import PORT, interface_of
from trainer.train.workers.devices import device_of

Emit = Callable[[dict[str, Any]], None]
POLL_SECONDS = 0.2
MOST_PORTS = 90  # of the stores of starts, in turn
FOLLOWS_SECONDS = 5.0  # that a lost connection waits for the end that caused it
LEAVING_SECONDS = 60.0  # for torchrun and its ranks to end once the model is done; then they are killed
MODULE = "trainer.train.ranks"


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """Why the ranks of another machine can't go on. `failed`: the error of a piece that can't be trained."""

    reason: str
    follows: bool = False  # another's end caused it
    out_of_memory: bool = False
    failed: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Among:
    """This machine's place among those that train the piece together, in one start of them all."""

    cluster: Cluster
    session: int  # number of this start
    troubles: Callable[[], list[Trouble]] = list  # of the others, as node 0 hears of them
    is_told_to_stop: Callable[[], bool] = lambda: False


@dataclass(kw_only=True)
class _Rank:
    """A connected rank."""

    number: int
    pid: int
    connection: Connection
    crash: dict[str, Any] | None = None


class TorchRun:
    """One piece's torchrun, from its start to the event that ends the piece."""

    def __init__(
        self,
        assignment: Assignment,
        count: int,
        emit: Emit,
        clock: Callable[[], float],
        watch: HangWatch,
        *,
        retries: int,
        silences: int,
        gpus: Sequence[int],
        among: Among | None = None,
    ) -> None:
        """`count`: ranks of this machine; `silences`: how often the piece's ranks were silent before; `gpus`:
        the ranks', if not all.
        """
        self._assignment, self._emit, self._clock, self._most_retries = assignment, emit, clock, retries
        self._identity = {**assignment.piece.identity, "worker": 0}
        self._watch, self.silences = watch, silences
        self.retries = 0
        self.gives_up = False  # its last event is that its ranks died once more than it retries
        self.out_of_memory = ""  # the error of a rank that ran out of it
        self._kill_at: dict[int, float] = {}  # rank's process -> when it has had the time for its stacks
        self._among, self._stops_at = among, math.inf  # when a trouble of another machine ends this start
        self._first = count * among.cluster.node if among else 0  # of this machine's ranks
        self._restart = 0  # number of the current start of the ranks
        self._ranks: dict[Connection, _Rank] = {}
        # Lost ranks in order: whether another's end caused it, and why.
        self._ends: list[tuple[bool, dict[str, Any]]] = []
        self._ended: dict[str, Any] | None = None
        self._folder = HeldFolder("ranks")
        folder = Path(self._folder.name)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / "line"))
        self._listener.listen(count)
        restarts = 0 if among else retries  # of several machines all start anew, by their supervisors
        self._torchrun = subprocess.Popen(
            [
                *(sys.executable, "-m", f"{MODULE}.torchrun", *_place(among), "--nproc-per-node", str(count)),
                *("--max-restarts", str(restarts), "--log-dir", str(folder / "log")),
                *("-m", f"{MODULE}.rank"),
            ],
            env=environment.for_ranks(
                folder / "line", gpus=gpus, interface=interface_of(among.cluster.address) if among else ""
            ),
            stdin=subprocess.PIPE,
        )
        started = {"event": "torchrun_started", **self._identity, "pid": os.getpid()}
        emit({**started, "torchrun": self._torchrun.pid, "ranks": count, **_told(among)})

    def run(self) -> dict[str, Any] | None:
        """Receive events until the piece is done or has failed; return its last event.

        None if the piece is to be tried again: torchrun was killed (it restarts its ranks, not itself), or a
        rank ran out of memory.
        """
        leave_at = float("inf")
        while True:
            alive = self._torchrun.poll() is None
            waits = alive or self._lacks_the_cause
            since = self._clock()
            for ready in wait([self._listener, *self._ranks], timeout=POLL_SECONDS if waits else 0):
                if ready is self._listener:
                    self._accept()
                else:
                    self._receive(self._ranks[ready])  # type: ignore[index]  # all others are connections
            self._check_silence(since)
            if self._among is not None and self._among.is_told_to_stop():
                return self._ended
            self._hear_of_others()
            if self.out_of_memory and self._ended is None:
                return None
            if self.gives_up:
                return {"event": "model_failed", **self._identity, **self._reason()}
            if self._ended is not None:
                leave_at = min(leave_at, time.monotonic() + LEAVING_SECONDS)
                # Others may wait for a rank that failed; after a notice nobody has anything left to write.
                is_over = self._ended["event"] != "model_done"
                if not alive or is_over or time.monotonic() > leave_at:
                    return self._ended
            elif self._is_over(alive=alive):
                self.gives_up = not self._may_retry()
                if not self.gives_up:  # a signal killed torchrun, or it has no restart for a silence
                    self._note_retry()
                    return None

    @property
    def trouble(self) -> Trouble | None:
        """Return why the ranks of this machine could not go on; None if they ended well."""
        if self._ended is not None and self._ended["event"] == "model_failed":
            known: dict[str, Any] = {
                name: self._ended[name] for name in ("reason", "error") if name in self._ended
            }
            return Trouble(reason=str(self._ended["reason"]), failed=known)
        if self._ended is not None or self._torchrun.poll() == 0:
            return None
        if self.out_of_memory:
            return Trouble(reason=self.out_of_memory, out_of_memory=True)
        return Trouble(reason=str(self._reason()["reason"]), follows=_only_follow(self._ends))

    def _hear_of_others(self) -> None:
        """Take in what ended the ranks of other machines. What only follows from another's end waits a while
        for its cause.
        """
        for told in self._among.troubles() if self._among is not None else ():
            if told.failed is not None:
                self._settle({"event": "model_failed", **self._identity, **told.failed})
                return
            if told.out_of_memory:
                self.out_of_memory = told.reason
            self._ends.append((told.follows, {"reason": told.reason}))
            wait_seconds = FOLLOWS_SECONDS if told.follows else 0.0
            self._stops_at = min(self._stops_at, self._clock() + wait_seconds)

    def _is_over(self, *, alive: bool) -> bool:
        """Return whether this start has ended without the end of its piece."""
        if not alive:
            if any(rank.connection.poll() for rank in self._ranks.values()):
                return False
            if not self._lacks_the_cause:
                return True
            self._stops_at = min(self._stops_at, self._clock() + FOLLOWS_SECONDS)
        return self._clock() >= self._stops_at

    @property
    def _lacks_the_cause(self) -> bool:
        """Return whether another machine may still tell what ended the ranks here, which only lost it."""
        among = self._among
        return among is not None and among.cluster.is_head and _only_follow(self._ends)

    def close(self) -> None:
        """Kill torchrun, with which the kernel kills its ranks, and each connected rank; wait for
        their end.
        """
        self._torchrun.kill()
        self._torchrun.wait()
        if self._torchrun.stdin is not None:
            self._torchrun.stdin.close()
        self._listener.close()  # a rank that starts now can't connect
        for rank in self._ranks.values():
            with suppress(ProcessLookupError):
                os.kill(rank.pid, signal.SIGKILL)
        for rank in self._ranks.values():
            with suppress(EOFError, OSError):
                while True:  # drop what it had sent, until the kernel closes its end
                    rank.connection.recv_bytes()
            rank.connection.close()
        self._ranks.clear()
        self._folder.cleanup()

    def _accept(self) -> None:
        """Accept a rank and send it the piece. The first rank with a higher restart means that torchrun
        restarted them.
        """
        line, _ = self._listener.accept()
        connection = Connection(line.detach())
        try:
            hello = connection.recv()
            if hello["restart"] > self._restart:
                self._start_again(hello["restart"])
            connection.send(self._assignment)
        except (EOFError, OSError):
            connection.close()
            return
        self._ranks[connection] = _Rank(number=hello["worker"], pid=hello["pid"], connection=connection)

    def _may_retry(self) -> bool:
        """Return whether the ranks may start again: once after a silence, else as often as the job says."""
        if self._kill_at:  # they were ended for their silence
            return self.silences <= 1
        return self.retries < self._most_retries

    def _start_again(self, restart: int) -> None:
        for rank in list(self._ranks.values()):  # torchrun has ended them; their last messages explain why
            self._receive(rank)
        self.gives_up = not self._may_retry()
        if self.gives_up:
            return
        self._note_retry()
        self._restart = restart
        self._ends.clear()
        self._kill_at.clear()
        self._watch.begin(self._clock())

    def _note_retry(self) -> None:
        self._emit({"event": "retry", **self._identity, **self._reason()})
        self.retries += 1

    def _receive(self, rank: _Rank) -> None:
        try:
            while rank.connection.poll():
                self._act_on(rank, rank.connection.recv())
        except (EOFError, OSError):
            del self._ranks[rank.connection]
            rank.connection.close()
            self._note_end(rank)

    def _check_silence(self, since: float) -> None:
        """Ask silent ranks where they are, and end those that do not answer, or all if all do. `since` when
        this process has listened to them.
        """
        now, bound = self._clock(), self._watch.clock.bound
        if now - since > DEAF_SECONDS:
            self._watch.begin(now)
        # Once one is ended, those that are left wait for it until torchrun restarts all.
        watched = [] if self._kill_at else [rank.number for rank in self._ranks.values()]
        silence = self._watch.check(watched, now)
        self.silences += bool(silence.hung)
        if silence.ask:
            self._emit({"event": "ranks_silent", **self._identity, "seconds": bound / 2})
        if silence.answered:
            self._ends.insert(0, (False, {"reason": f"no rank made progress within {bound:g} s"}))
        for rank in self._ranks.values():
            with suppress(OSError):  # it is gone: `_receive` handles that
                if silence.ask:
                    rank.connection.send("where are you?")
                if rank.number in silence.hung:
                    self._end_silent(rank, now, bound, answered=silence.answered)
                if now >= self._kill_at.get(rank.pid, math.inf):
                    os.kill(rank.pid, signal.SIGKILL)

    def _end_silent(self, rank: _Rank, now: float, bound: float, *, answered: bool) -> None:
        """Report a rank without progress, with the state of its process and its device, and end it."""
        if not answered:
            reason = f"rank {rank.number} hung: it did not answer within {bound:g} s"
            self._ends.insert(0, (False, {"reason": reason}))
        device = state_of_device(device_of(self._assignment.kind, rank.number - self._first))
        known = {"process": state_of(rank.pid), "device": device}
        self._emit({"event": "worker_silent", "worker": rank.number, "seconds": bound, **known})
        self._kill_at[rank.pid] = now + (ABORT_SECONDS if abort(rank.pid) else 0.0)

    def _act_on(self, rank: _Rank, event: dict[str, Any]) -> None:
        if event["event"] == "rank_dumped":
            self._watch.note_answer(rank.number)
        else:
            self._watch.note_sign(self._clock())
        if event["event"] == "crashed":
            rank.crash = event
            if event["out_of_memory"]:
                self.out_of_memory = event["reason"]
        elif event["event"] in ("model_done", "model_failed", "model_stopped"):
            self._settle(event)
        else:
            self._emit(event)

    def _note_end(self, rank: _Rank) -> None:
        """Note why a rank has gone."""
        if rank.crash is None:
            self._ends.append((False, {"reason": f"rank {rank.number} was killed"}))
        else:
            reason = f"rank {rank.number}: {rank.crash['reason']}"
            self._ends.append(
                (rank.crash["follows"], {"reason": reason, "traceback": rank.crash["traceback"]})
            )

    def _reason(self) -> dict[str, Any]:
        """Return why the ranks ended: the first end that was not caused by another's."""
        if (code := self._torchrun.poll()) is not None and code < 0:
            return {"reason": f"torchrun was killed by signal {-code}"}
        first = next((why for follows, why in self._ends if not follows), None)
        others = next((why for _, why in self._ends), None)
        return first or others or {"reason": f"torchrun ended with exit code {code} before any rank began"}

    def _settle(self, event: dict[str, Any]) -> None:
        """Take the first event that ends the piece; only one that was stopped goes on from its
        checkpoints.
        """
        if self._ended is not None:
            return
        if event["event"] != "model_stopped":
            forget(self._assignment.settings.checkpoints, event["model"])
        self._ended = event
        self._emit(event)


def _place(among: Among | None) -> list[str]:
    """Return torchrun's place: its store on loopback, or on node 0 at a port of this start."""
    if among is None:
        return ["127.0.0.1:0", "0", "1", str(uuid.uuid4())]
    cluster, port = among.cluster, PORT + 1 + among.session % MOST_PORTS
    return [f"{cluster.head}:{port}", str(cluster.node), str(len(cluster.addresses)), str(among.session)]


def _only_follow(ends: Sequence[tuple[bool, Any]]) -> bool:
    """Return whether ranks were lost, each because of another."""
    return bool(ends) and all(follows for follows, _ in ends)


def _told(among: Among | None) -> dict[str, Any]:
    return {"node": among.cluster.node, "nodes": len(among.cluster.addresses)} if among else {}
