"""The supervisor: a queue of pieces, a process for each worker, a retry for models whose worker died.

Owns the processes: which worker trains what, restarts, and hints to read ahead. The order of work is
`piece_queue`, what a worker does is `worker`.
"""

from __future__ import annotations

import math
import multiprocessing
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from trainer.job.pieces.piece import Piece
from trainer.job.pieces.queue import PieceQueue
from trainer.train.checkpoint import forget
from trainer.train.child_processes import ctrl_c_blocked
from trainer.train.cpu import num_cores
from trainer.train.inputs.staging import STAGE_GIB, stages
from trainer.train.notice import Notice
from trainer.train.packs.strategy import places_of
from trainer.train.workers.assignment import Outcome, WorkerSettings
from trainer.train.workers.devices import default_workers, device_of
from trainer.train.workers.station import Station, let_threads_sleep, threads_of
from trainer.train.workers.worker import ReadAhead, work

Emit = Callable[[dict[str, Any]], None]


@dataclass(kw_only=True)
class _Worker:
    number: int
    process: BaseProcess
    connection: Connection
    pieces: dict[str, Piece] = field(default_factory=dict)  # pieces in training, by name
    alone: bool = False  # it retries one model without neighbours
    crash: str = ""
    last: str = ""  # source of the last piece, whose rows it still holds
    staged: str = ""  # source that it reads ahead

    @property
    def held(self) -> set[str]:
        """Return the sources whose rows it holds."""
        return {self.last, *(piece.source for piece in self.pieces.values())} - {""}


def worker_context(kind: str) -> Any:
    """Return the multiprocessing context that starts workers. For a CPU it starts to load torch in the
    background.

    CUDA does not survive a fork. On a CPU, workers are forked from a server that has loaded torch.
    """
    if kind == "cuda":
        return multiprocessing.get_context("spawn")
    let_threads_sleep()
    # The first optimizer loads torch._dynamo, the first score arch: a second each in every worker, unless
    # preloaded.
    preloaded = ["torch", "torch._dynamo", "arch.bootstrap", "trainer.train.workers.worker"]
    multiprocessing.set_forkserver_preload(preloaded)
    with ctrl_c_blocked():
        forkserver.ensure_running()
    return multiprocessing.get_context("forkserver")


class Supervisor:
    """Train pieces on workers, several models at a time on each if its device gains from that; `close` (or
    leaving the `with`) ends every worker at once.

    When a worker dies, its models are retried together `train.retries` times, then each alone once. A model
    that was always alone gets no such extra retry.
    """

    def __init__(self, *, kind: str, num_workers: int, settings: WorkerSettings, emit: Emit) -> None:
        self._kind, self._num_workers, self._settings, self._emit = kind, num_workers, settings, emit
        self._places = places_of(settings.job, kind)
        self._context = worker_context(kind)
        self._workers: dict[int, _Worker] = {}
        self._queue = PieceQueue(())
        self._stages = stages(kind=kind, num_workers=num_workers, cores=num_cores())
        self._again_together: deque[tuple[Piece, ...]] = deque()
        self._again_alone: deque[Piece] = deque()
        self._deaths: Counter[str] = Counter()
        self._had_neighbours: set[str] = set()
        self._outcome = Outcome()
        self._notice = Notice(settings.notice)

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, pieces: Iterable[Piece], *, finished: Collection[str] = ()) -> Outcome:
        """Train every piece, longest first, without those whose models are `finished`; return when each is
        done or has failed, or a notice has stopped those under way.
        """
        pieces = list(pieces)
        if self._kind == "cpu":
            threads = threads_of(self._settings.job, pieces, num_workers=self._num_workers, cores=num_cores())
            pieces = [replace(piece, threads=threads[piece.name]) for piece in pieces]
        self._queue = PieceQueue([piece for piece in pieces if piece.name not in finished])
        while True:
            self._assign_pieces()
            self._send_ahead()
            if not any(worker.pieces for worker in self._workers.values()):
                return self._outcome
            self._listen()

    def close(self) -> None:
        """Kill every worker and wait for its end: finished models are on disk already."""
        for worker in self._workers.values():
            worker.process.kill()
        for worker in self._workers.values():
            worker.process.join()
            worker.connection.close()
        self._workers.clear()

    def _assign_pieces(self) -> None:
        """Fill free places: retries first, then the queue, one model to each worker in turn so that none
        waits. After a notice to stop, leave them free.
        """
        if self._notice.stops:
            return
        for number in range(self._num_workers):
            if self._again_together and self._is_idle(number):
                for piece in self._again_together.popleft():
                    self._assign(number, piece)
            elif self._again_alone and self._is_idle(number):
                self._assign(number, self._again_alone.popleft())
                self._workers[number].alone = True
        for occupied in range(self._places):
            for number in range(self._num_workers):
                worker = self._workers.get(number)
                training, alone = (len(worker.pieces), worker.alone) if worker else (0, False)
                if len(self._queue) and training == occupied and not alone:
                    held, staged = (worker.held, worker.staged) if worker else ((), "")
                    elsewhere = self._elsewhere(number)
                    self._assign(number, self._queue.take(held=held, staged=staged, elsewhere=elsewhere))

    def _elsewhere(self, number: int) -> set[str]:
        """Return the sources that other workers hold or read ahead."""
        others = [worker for worker in self._workers.values() if worker.number != number]
        return {source for worker in others for source in (*worker.held, worker.staged)}

    def _send_ahead(self) -> None:
        """Send each busy worker the piece to read ahead, if it changed. Only a hint."""
        for worker in self._workers.values() if self._stages else ():
            if worker.staged and self._queue.has(worker.staged):
                continue
            piece = self._ahead_of(worker)
            source = piece.source if piece is not None else ""
            if source != worker.staged:
                worker.staged = source
                with suppress(OSError):  # it died: `_listen` handles that
                    worker.connection.send(ReadAhead(piece=piece))

    def _ahead_of(self, worker: _Worker) -> Piece | None:
        """Return a worker's next piece if its source should be read ahead: no worker holds it and it is
        within STAGE_GIB.
        """
        if not len(self._queue) or not worker.pieces:
            return None
        elsewhere = self._elsewhere(worker.number)
        piece = self._queue.peek(held=worker.held, elsewhere=elsewhere)
        there = piece.source in worker.held or piece.source in elsewhere
        return None if there or piece.memory_gib > STAGE_GIB else piece

    def _is_idle(self, number: int) -> bool:
        return number not in self._workers or not self._workers[number].pieces

    def _assign(self, number: int, piece: Piece) -> None:
        worker = self._workers.get(number) or self._start(number)
        worker.pieces[piece.name] = piece
        worker.last = piece.source
        if worker.staged == piece.source:
            worker.staged = ""
        with suppress(OSError):  # it died while idle: `_listen` retries the piece
            worker.connection.send(piece)

    def _start(self, number: int) -> _Worker:
        ours, theirs = self._context.Pipe()
        sharing = math.ceil(self._num_workers / default_workers(self._kind)) if self._kind == "cuda" else 1
        station = Station(number=number, device=device_of(self._kind, number), sharing=sharing)
        process = self._context.Process(
            target=work, args=(station, self._settings, theirs), name=f"worker-{number}", daemon=True
        )
        with ctrl_c_blocked():  # until `close` knows it, too
            process.start()
            self._workers[number] = _Worker(number=number, process=process, connection=ours)
        theirs.close()
        return self._workers[number]

    def _listen(self) -> None:
        """Wait for messages of workers, and act on them."""
        by_handle: dict[Any, _Worker] = {}
        for worker in self._workers.values():
            by_handle[worker.connection] = by_handle[worker.process.sentinel] = worker
        ready = wait(list(by_handle))
        for worker in {each.number: each for each in (by_handle[handle] for handle in ready)}.values():
            # Handle messages sent before its death first.
            alive = self._read(worker)
            if not alive or not worker.process.is_alive():
                self._read(worker)
                self._remove(worker)

    def _read(self, worker: _Worker) -> bool:
        try:
            while worker.connection.poll():
                self._receive(worker, worker.connection.recv())
        except (EOFError, OSError):
            return False
        return True

    def _receive(self, worker: _Worker, event: dict[str, Any]) -> None:
        kind = event["event"]
        if kind == "crashed":
            worker.crash = event["reason"]
            return
        if kind == "model_stopped":
            self._outcome.stopped[event["model"]] = event
            del worker.pieces[event["model"]]
        if kind in ("model_done", "model_failed"):
            forget(self._settings.checkpoints, event["model"])
            (self._outcome.done if kind == "model_done" else self._outcome.failed)[event["model"]] = event
            del worker.pieces[event["model"]]
            worker.alone = worker.alone and bool(worker.pieces)
        self._emit(event)

    def _remove(self, worker: _Worker) -> None:
        """Remove a dead worker, and retry or report its models."""
        del self._workers[worker.number]
        worker.process.kill()  # its pipe may close before it ends
        worker.process.join()
        worker.connection.close()
        reason = worker.crash or _cause(worker.process.exitcode)
        self._deaths.update(worker.pieces.keys())
        if len(worker.pieces) > 1:
            self._had_neighbours.update(worker.pieces)
        retries = self._settings.job.train.retries
        together = []
        for model, piece in worker.pieces.items():
            chances = retries + (retries > 0 and model in self._had_neighbours)
            event = {**piece.identity, "worker": worker.number, "reason": reason}
            if self._deaths[model] > chances:
                self._outcome.failed[model] = {"event": "model_failed", **event}
                self._emit(self._outcome.failed[model])
                continue
            self._outcome.retries += 1
            self._emit({"event": "retry", **event})
            if self._deaths[model] <= retries:
                together.append(piece)
            else:
                self._again_alone.append(piece)
        if together:
            self._again_together.append(tuple(together))


def _cause(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        return f"its worker was killed by signal {-exit_code}"
    return f"its worker ended with exit code {exit_code}"
