"""The supervisor of ranks: one piece after another, each trained by all devices under its own torchrun.

Owns the processes: torchrun starts the ranks and restarts them when one dies; `_TorchRun` receives their
events, finds the error that came first, and leaves no process behind. `rank` is what a rank runs.
"""

from __future__ import annotations

import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from trainer.base import environment
from trainer.base.errors import DataError, UsageError
from trainer.base.files import HeldFolder
from trainer.base.process_state import ABORT_SECONDS, abort, state_of
from trainer.base.silence import FIRST_SECONDS, LEAST_SECONDS, ProgressClock
from trainer.job.job import Job
from trainer.job.pieces.piece import Piece
from trainer.machines.kernels import gains_from_threads
from trainer.train.checkpoint import forget
from trainer.train.cpu import num_cores
from trainer.train.notice import Notice
from trainer.train.observing.gpu_watch import state_of_device
from trainer.train.piece import kept
from trainer.train.ranks.connection import Assignment
from trainer.train.ranks.hanging import HangWatch
from trainer.train.workers.assignment import Outcome, WorkerSettings
from trainer.train.workers.devices import device_of
from trainer.train.workers.smaller import remembered, smaller, with_job

Emit = Callable[[dict[str, Any]], None]
POLL_SECONDS = 0.2
LEAVING_SECONDS = 60.0  # for torchrun and its ranks to end once the model is done; then they are killed
MODULE = "trainer.train.ranks"


def check_ranks(pieces: Iterable[Piece], job: Job, *, ranks: int) -> None:
    """Raise UsageError for a piece with fewer samples to share than ranks."""
    for piece in pieces:
        shared = min(job.train.batch, piece.windows)
        if 0 < shared < ranks:  # 0: planning refused a series, which is reported when the piece starts
            of = f"a batch of {job.train.batch:,}"
            if piece.windows < job.train.batch:
                of = f"{piece.windows:,} {job.model.reads}"
            raise UsageError(
                f"{ranks} ranks for {of} of {piece.title}",
                why="a rank without a sample has nothing to train on",
                do=f"Raise train.batch, give more bars, or set --workers to at most {shared}.",
            )


@dataclass(kw_only=True)
class _Rank:
    """A connected rank."""

    number: int
    pid: int
    connection: Connection
    crash: dict[str, Any] | None = None


class RankSupervisor:
    """Train pieces one after another on `ranks` devices; `close` (or leaving the `with`) ends every process
    at once.

    When a rank or torchrun dies, all of them restart from the newest checkpoint, up to `train.retries` times
    per piece.
    """

    def __init__(
        self,
        *,
        kind: str,
        ranks: int,
        settings: WorkerSettings,
        emit: Emit,
        sharded: bool = False,
        first: float = FIRST_SECONDS,
        least: float = LEAST_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`first` and `least`: bounds of the ranks' progress, as of a `ProgressClock`."""
        self._kind, self._count, self._settings, self._emit = kind, ranks, settings, emit
        self._sharded, self._first, self._least, self._clock = sharded, first, least, clock
        self._outcome = Outcome()
        self._run: _TorchRun | None = None

    def __enter__(self) -> RankSupervisor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, pieces: Iterable[Piece], *, finished: Collection[str] = ()) -> Outcome:
        """Train every piece, longest first, without those whose models are `finished`; return when each is
        done or has failed, or a notice has stopped the one under way.
        """
        job = self._settings.job
        threads = 1
        if self._kind == "cpu" and gains_from_threads(job.cost):
            threads = max(1, num_cores() // self._count)
        notice = Notice(self._settings.notice)
        for piece in sorted(pieces, key=lambda piece: (-piece.estimate, piece.name)):
            if piece.name not in finished and not notice.stops:
                self._train(replace(piece, threads=threads))
        return self._outcome

    def close(self) -> None:
        """Kill torchrun and every rank, and wait for their end: finished models are on disk already."""
        if self._run is not None:
            self._run.close()
            self._run = None

    def _train(self, piece: Piece) -> None:
        settings = self._settings
        try:
            done = kept(piece, settings.job, settings.data, out=settings.out)
        except DataError as error:  # planning refused a series
            failure = {**piece.identity, "reason": str(error), "error": error.as_dict()}
            self._outcome.failed[piece.name] = {"event": "model_failed", **failure}
            self._emit(self._outcome.failed[piece.name])
            return
        if done:
            forget(settings.checkpoints, piece.name)
            self._outcome.done[piece.name] = {**done, "kept": True}
            self._emit(self._outcome.done[piece.name])
            return
        ended, left = None, settings.job.train.retries
        while ended is None:
            assignment = Assignment(
                piece=piece, settings=self._settings, kind=self._kind, sharded=self._sharded
            )
            began = ProgressClock(began=self._clock(), first=self._first, least=self._least)
            watch = HangWatch(clock=began)
            self._run = _TorchRun(assignment, self._count, self._emit, self._clock, watch, retries=left)
            run = self._run
            try:
                ended = run.run()
            finally:
                self._outcome.retries += run.retries
                left -= run.retries
                self.close()
            if ended is None and run.out_of_memory:
                ended = self._take_less_memory(piece, run.out_of_memory)
        ends = {"model_done": self._outcome.done, "model_stopped": self._outcome.stopped}
        ends.get(ended["event"], self._outcome.failed)[piece.name] = ended

    def _take_less_memory(self, piece: Piece, reason: str) -> dict[str, Any] | None:
        """Halve the slices of this piece and all later ones, which costs no retry; return the event that ends
        the piece if it can't take less.
        """
        job = smaller(self._settings.job, ranks=self._count)
        if job is None:
            failed = {"event": "model_failed", **piece.identity, "worker": 0}
            failed["reason"] = f"out of memory in the smallest slices: {reason}"
            self._emit(failed)
            return failed
        self._settings = with_job(self._settings, job)
        now = {"pack": 1, "micro_batch": job.expert.micro_batch, **remembered(self._settings)}
        self._emit({"event": "out_of_memory", "worker": 0, **now, "reason": reason})
        again = {"event": "retry", **piece.identity, "worker": 0, "charged": False}
        self._emit({**again, "reason": f"out of memory: now in slices of {job.expert.micro_batch}"})
        return None


class _TorchRun:
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
    ) -> None:
        self._assignment, self._emit, self._clock, self._most_retries = assignment, emit, clock, retries
        self._identity = {**assignment.piece.identity, "worker": 0}
        self._watch = watch
        self.retries = 0
        self.out_of_memory = ""  # the error of a rank that ran out of it
        self._kill_at: dict[int, float] = {}  # rank's process -> when it has had the time for its stacks
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
        self._torchrun = subprocess.Popen(
            [
                *(sys.executable, "-m", f"{MODULE}.torchrun", "--nproc-per-node", str(count)),
                *("--max-restarts", str(retries), "--log-dir", str(folder / "log")),
                *("-m", f"{MODULE}.rank"),
            ],
            env=environment.for_ranks(folder / "line"),
            stdin=subprocess.PIPE,
        )
        started = {"event": "torchrun_started", **self._identity, "pid": os.getpid()}
        emit({**started, "torchrun": self._torchrun.pid, "ranks": count})

    def run(self) -> dict[str, Any] | None:
        """Receive events until the piece is done or has failed; return its last event.

        None if the piece is to be tried again: torchrun was killed (it restarts its ranks, not itself), or a
        rank ran out of memory.
        """
        leave_at = float("inf")
        while True:
            alive = self._torchrun.poll() is None
            for ready in wait([self._listener, *self._ranks], timeout=POLL_SECONDS if alive else 0):
                if ready is self._listener:
                    self._accept()
                else:
                    self._receive(self._ranks[ready])  # type: ignore[index]  # all others are connections
            self._check_silence()
            if self.out_of_memory and self._ended is None:
                return None
            if self._ended is not None:
                leave_at = min(leave_at, time.monotonic() + LEAVING_SECONDS)
                # Others may wait for a rank that failed; after a notice nobody has anything left to write.
                is_over = self._ended["event"] != "model_done"
                if not alive or is_over or time.monotonic() > leave_at:
                    return self._ended
            elif not alive and not any(rank.connection.poll() for rank in self._ranks.values()):
                if self.retries < self._most_retries:  # torchrun did not give up: a signal killed it
                    self._note_retry()
                    return None
                return self._settle({"event": "model_failed", **self._identity, **self._reason()})

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

    def _start_again(self, restart: int) -> None:
        for rank in list(self._ranks.values()):  # torchrun has ended them; their last messages explain why
            self._receive(rank)
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

    def _check_silence(self) -> None:
        """Ask silent ranks where they are, and end those that do not answer, or all if all do."""
        now, bound = self._clock(), self._watch.clock.bound
        # Once one is ended, those that are left wait for it until torchrun restarts all.
        watched = [] if self._kill_at else [rank.number for rank in self._ranks.values()]
        silence = self._watch.check(watched, now)
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
        device = state_of_device(device_of(self._assignment.kind, rank.number))
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
            if self._ended is None:
                if event["event"] != "model_stopped":
                    forget(self._assignment.settings.checkpoints, event["model"])
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

    def _settle(self, event: dict[str, Any]) -> dict[str, Any]:
        self._ended = event
        self._emit(event)
        return event
