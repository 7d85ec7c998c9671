"""The supervisor: a queue of pieces, a process for each worker, a retry for models whose worker died.

Owns the processes: which worker trains what, restarts, and hints to read ahead. The order of work is
`piece_queue`, what a worker does is `worker`.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import wait
from typing import Any

from trainer.base.process_state import ABORT_SECONDS, abort, state_of
from trainer.base.silence import DEAF_SECONDS, ProgressClock
from trainer.cluster.studies import failed_trial
from trainer.cluster.waiting import OwnPieces, Waiting
from trainer.job.pieces.piece import Piece
from trainer.train.checkpoint import forget
from trainer.train.child_processes import ctrl_c_blocked
from trainer.train.cpu import num_cores
from trainer.train.notice import Notice
from trainer.train.observing.gpu_watch import state_of_device
from trainer.train.packs.strategy import places_of
from trainer.train.smoke import tried
from trainer.train.workers.assignment import Drop, Outcome, ReadAhead, WorkerSettings
from trainer.train.workers.devices import default_workers, device_of
from trainer.train.workers.helpers import STAGE_GIB, helpers_of
from trainer.train.workers.processes import WorkerProcess, start_helpers, worker_context
from trainer.train.workers.smaller import smaller, smallest, with_job
from trainer.train.workers.station import Station, threads_of
from trainer.train.workers.worker import work

Emit = Callable[[dict[str, Any]], None]
LOOK_SECONDS = 1.0  # between two looks at the progress of workers that say nothing
KILLS = 2  # deaths on a device that finished no model between them, before it is tried


class Supervisor:
    """Train pieces on workers, several models at a time on each if its device gains from that; `close` (or
    leaving the `with`) ends every worker at once.

    When a worker dies, its models are retried together `train.retries` times, then each alone once. A model
    that was always alone gets no such extra retry. A worker without progress counts as dead. Neither a broken
    device nor a lack of memory costs a model a retry.
    """

    def __init__(
        self,
        *,
        kind: str,
        num_workers: int,
        settings: WorkerSettings,
        emit: Emit,
        clock: Callable[[], float] = time.monotonic,
        smoke: Callable[[str], str] = tried,
        queue: Waiting | None = None,
    ) -> None:
        """`smoke` tries a device and returns why it fails, or ''. `queue` has the pieces that wait; if it is
        shared, this node trains those that it gets from it.
        """
        self._kind, self._num_workers, self._settings, self._emit = kind, num_workers, settings, emit
        self._clock, self._smoke = clock, smoke
        self._places = places_of(settings.job, kind)
        self._devices = [device_of(kind, number) for number in range(num_workers)]
        self._context = worker_context(kind)
        self._workers: dict[int, WorkerProcess] = {}
        self._queue: Waiting = queue or OwnPieces()
        self._num_helpers = helpers_of(kind=kind, num_workers=num_workers, cores=num_cores())
        self._again_together: deque[tuple[Piece, ...]] = deque()
        self._again_alone: deque[Piece] = deque()
        self._deaths: Counter[str] = Counter()
        self._killed: dict[str, Counter[str]] = {}  # device -> deaths there since it finished a model
        self._set_aside: dict[str, str] = {}  # device -> why it trains nothing any more
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
        self._queue.open([piece for piece in pieces if piece.name not in finished])
        while True:
            self._assign_pieces()
            self._send_ahead()
            has_devices = not all(device in self._set_aside for device in self._devices)
            if not has_devices:
                self._fail_the_rest()
            is_busy = any(worker.pieces for worker in self._workers.values())
            for piece, reason in self._queue.look(is_busy=is_busy):
                self._fail(piece, reason=reason)
            if not is_busy and (self._is_stopping or self._queue.is_over(has_devices=has_devices)):
                ended = (*self._outcome.over.values(), self._outcome.stopped)
                self._outcome.elsewhere = self._queue.elsewhere({name for names in ended for name in names})
                return self._outcome
            since = self._clock()
            self._listen()
            self._look_at_progress(since)

    def close(self) -> None:
        """Kill every worker and wait for its end: finished models are on disk already."""
        for worker in self._workers.values():
            worker.kill()
        for worker in self._workers.values():
            worker.join()
        self._workers.clear()

    def _assign_pieces(self) -> None:
        """Fill free places: retries first, then the queue, one model to each worker in turn so that none
        waits. After a notice to stop, leave them free.
        """
        if self._is_stopping:
            return
        usable = [n for n, device in enumerate(self._devices) if device not in self._set_aside]
        for number in usable:
            if self._again_together and self._is_idle(number):
                for piece in self._again_together.popleft():
                    self._assign(number, piece)
            elif self._again_alone and self._is_idle(number):
                self._assign(number, self._again_alone.popleft())
                self._workers[number].alone = True
        for occupied in range(self._places):
            for number in usable:
                worker = self._workers.get(number)
                training, alone = (worker.training, worker.alone) if worker else (0, False)
                if training == occupied and not alone and (taken := self._take(number)) is not None:
                    self._assign(number, taken)

    @property
    def _is_stopping(self) -> bool:
        """Return whether a notice to stop was heard, here or by a worker."""
        return self._notice.stops or bool(self._outcome.stopped)

    def _take(self, number: int) -> Piece | None:
        """Take the next piece for a worker from the queue; None if none waits."""
        worker = self._workers.get(number)
        held, staged = (worker.held, worker.staged) if worker else (set(), set())
        shape = next((piece.shape for piece in worker.pieces.values()), "") if worker else ""
        return self._queue.take(held=held, staged=staged, elsewhere=self._elsewhere(number), shape=shape)

    def _elsewhere(self, number: int) -> set[str]:
        """Return the sources that other workers hold or read ahead."""
        others = [worker for worker in self._workers.values() if worker.number != number]
        return {source for worker in others for source in worker.held | worker.staged}

    def _send_ahead(self) -> None:
        """Send each busy worker the pieces to read ahead, if they changed. Only a hint."""
        for worker in self._workers.values() if self._num_helpers else ():
            if worker.staged and all(map(self._queue.has, worker.staged)):
                continue
            pieces = self._ahead_of(worker)
            sources = {piece.source for piece in pieces}
            if sources != worker.staged:
                worker.staged = sources
                with suppress(OSError):  # it died: `_listen` handles that
                    worker.connection.send(ReadAhead(pieces=tuple(pieces)))

    def _ahead_of(self, worker: WorkerProcess) -> list[Piece]:
        """Return a worker's next pieces whose sources should be read ahead: as many as train together, which
        no worker holds and which are within STAGE_GIB.
        """
        if not worker.pieces:
            return []
        elsewhere, left = self._elsewhere(worker.number), STAGE_GIB
        ahead = []
        for piece in self._queue.ahead(self._places, held=worker.held, elsewhere=elsewhere):
            left -= piece.memory_gib
            if left < 0:
                break
            ahead.append(piece)
        return ahead

    def _is_idle(self, number: int) -> bool:
        return number not in self._workers or not self._workers[number].pieces

    def _assign(self, number: int, piece: Piece) -> None:
        worker = self._workers.get(number) or self._start(number)
        if not worker.pieces:
            worker.clock.begin(self._clock())
        worker.pieces[piece.name] = piece
        worker.last = piece.source
        worker.staged.discard(piece.source)
        with suppress(OSError):  # it died while idle: `_listen` retries the piece
            worker.connection.send(piece)

    def _start(self, number: int) -> WorkerProcess:
        sharing = math.ceil(self._num_workers / default_workers(self._kind)) if self._kind == "cuda" else 1
        helpers, lines = start_helpers(self._context, self._settings, number=number, count=self._num_helpers)
        ours, theirs = self._context.Pipe()
        station = Station(
            number=number,
            device=self._devices[number],
            sharing=sharing,
            helpers=tuple(lines),
            cores=max(1, num_cores() // self._num_workers),
        )
        process = self._context.Process(
            target=work, args=(station, self._settings, theirs), name=f"worker-{number}", daemon=True
        )
        with ctrl_c_blocked():  # until `close` knows it, too
            process.start()
            self._workers[number] = WorkerProcess(
                number=number,
                process=process,
                connection=ours,
                helpers=helpers,
                device=station.device,
                job=self._settings.job,
                clock=ProgressClock(began=self._clock()),
            )
        for line in (theirs, *lines):
            line.close()
        return self._workers[number]

    def _listen(self) -> None:
        """Wait for messages of workers, and act on them."""
        by_handle: dict[Any, WorkerProcess] = {}
        for worker in self._workers.values():
            by_handle[worker.connection] = by_handle[worker.process.sentinel] = worker
        ready = wait([*by_handle, *self._queue.handles], timeout=LOOK_SECONDS)
        workers = [by_handle[handle] for handle in ready if handle in by_handle]
        for worker in {each.number: each for each in workers}.values():
            # Handle messages sent before its death first.
            alive = self._read(worker)
            if not alive or not worker.process.is_alive():
                self._read(worker)
                self._remove(worker)

    def _read(self, worker: WorkerProcess) -> bool:
        try:
            while worker.connection.poll():
                self._receive(worker, worker.connection.recv())
        except (EOFError, OSError):
            return False
        return True

    def _receive(self, worker: WorkerProcess, event: dict[str, Any]) -> None:
        worker.clock.sign(self._clock())
        if event["event"] == "model_failed":
            event = _failure(worker.pieces[event["model"]], event)
        kind = event["event"]
        if kind == "crashed":
            worker.crash = worker.crash or event["reason"]
            worker.out_of_memory = event.get("out_of_memory", False)
            return
        if kind == "scoring" and event.get("aside"):
            worker.scoring.add(event["model"])
        if kind == "model_stopped" or kind in self._outcome.over:
            worker.scoring.discard(event["model"])
        if kind == "model_stopped":
            self._outcome.stopped[event["model"]] = event
            del worker.pieces[event["model"]]
        if kind in self._outcome.over:
            forget(self._settings.checkpoints, event["model"])
            self._outcome.over[kind][event["model"]] = event
            del worker.pieces[event["model"]]
            if kind != "model_failed":
                self._killed.pop(worker.device, None)
            worker.alone = worker.alone and bool(worker.pieces)
        self._emit(event)
        for model in self._queue.hear(event):
            with suppress(OSError):  # it died: `_listen` handles that
                worker.connection.send(Drop(model=model))
        if kind in self._outcome.over:
            self._queue.done(event["model"])

    def _look_at_progress(self, since: float) -> None:
        """End workers that make no progress, once they have had the time to write their stacks. `since` when
        this process has listened to them.
        """
        now = self._clock()
        for worker in self._workers.values():
            if now - since > DEAF_SECONDS:
                worker.clock.begin(now)
            if now >= worker.kill_at:
                worker.process.kill()
            elif worker.pieces and not worker.silent and worker.clock.is_silent(now):
                self._end_silent(worker, now)

    def _end_silent(self, worker: WorkerProcess, now: float) -> None:
        """Report a worker without progress, with the state of its process and its device, and end it."""
        seconds, pid = now - worker.clock.at, worker.process.pid or 0
        worker.silent, worker.crash = True, f"its worker made no progress for {seconds:.0f} s"
        known = {"process": state_of(pid), "device": state_of_device(worker.device)}
        pieces = [piece.title for piece in worker.pieces.values()]
        silent = {"worker": worker.number, "pieces": pieces, "seconds": round(seconds, 1), **known}
        self._emit({"event": "worker_silent", **silent})
        worker.kill_at = now + (ABORT_SECONDS if abort(pid) else 0.0)

    def _remove(self, worker: WorkerProcess) -> None:
        """Remove a dead worker, and retry or report its models."""
        self._discard(worker)
        if worker.out_of_memory:
            self._take_less_memory(worker)
            return
        reason = worker.crash or _cause(worker.process.exitcode)
        self._deaths.update(worker.pieces.keys())
        if len(worker.pieces) > 1:
            self._had_neighbours.update(worker.pieces)
        if worker.pieces and self._is_broken(worker):
            return
        together = []
        for model, piece in worker.pieces.items():
            if self._deaths[model] > self._chances(worker, model):
                self._fail(piece, worker=worker.number, reason=reason)
                continue
            self._outcome.retries += 1
            self._emit({"event": "retry", **piece.identity, "worker": worker.number, "reason": reason})
            if self._deaths[model] <= self._retries(worker):
                together.append(piece)
            else:
                self._again_alone.append(piece)
        for first in range(0, len(together), self._places):  # with those that were scored, more than places
            self._again_together.append(tuple(together[first : first + self._places]))

    def _discard(self, worker: WorkerProcess) -> None:
        del self._workers[worker.number]
        worker.kill()  # its pipe may close before it ends
        worker.join()

    def _retries(self, worker: WorkerProcess) -> int:
        """Return how often the models of a dead worker are retried together: once after a silence, whatever
        the job says.
        """
        return 1 if worker.silent else self._settings.job.train.retries

    def _chances(self, worker: WorkerProcess, model: str) -> int:
        retries = self._retries(worker)
        return retries + (retries > 0 and model in self._had_neighbours)

    def _fail(self, piece: Piece, **why: Any) -> None:
        event = _failure(piece, {"event": "model_failed", **piece.identity, **why})
        self._outcome.over[event["event"]][piece.name] = event
        self._emit(event)
        self._queue.hear(event)
        self._queue.done(piece.name)

    def _again(self, pieces: Iterable[Piece], *, worker: int, reason: str, places: int) -> None:
        """Queue models again, `places` together, without charging them a retry."""
        pieces = list(pieces)
        for piece in pieces:
            again = {"event": "retry", **piece.identity, "worker": worker, "reason": reason}
            self._emit({**again, "charged": False})
        for first in range(0, len(pieces), places):
            self._again_together.append(tuple(pieces[first : first + places]))

    # --- broken devices

    def _is_broken(self, worker: WorkerProcess) -> bool:
        """Try the device of a dead worker if KILLS models died on it since it finished one, or if one would
        fail now. Set a device that fails aside, and train its models elsewhere, without a charge; return
        whether it was.
        """
        device = worker.device
        killed = self._killed.setdefault(device, Counter())
        killed.update(worker.pieces.keys())
        fails = any(self._deaths[model] > self._chances(worker, model) for model in worker.pieces)
        if device == "cpu" or not (fails or sum(killed.values()) >= KILLS):
            return False
        del self._killed[device]
        if not (reason := self._smoke(device)):
            return False
        self._set_aside[device] = reason
        pieces = dict(worker.pieces)
        for other in [one for one in self._workers.values() if one.device == device]:
            pieces |= other.pieces
            self._discard(other)
        self._deaths -= killed
        aside = {"device": device, "reason": reason, "pieces": [one.title for one in pieces.values()]}
        self._emit({"event": "device_set_aside", "worker": worker.number, **aside})
        why = f"{device} is set aside: {reason}"
        self._again(pieces.values(), worker=worker.number, reason=why, places=self._places)
        return True

    def _fail_the_rest(self) -> None:
        """Leave every model that waits to other machines, or fail it: no device is left."""
        waiting = [piece for pieces in self._again_together for piece in pieces] + list(self._again_alone)
        self._again_together.clear()
        self._again_alone.clear()
        if self._queue.leave_to_others(waiting):
            return
        while (piece := self._take(0)) is not None:
            waiting.append(piece)
        reason = "no device is left: " + "; ".join(f"{name}: {why}" for name, why in self._set_aside.items())
        for piece in waiting:
            self._fail(piece, reason=reason)

    # --- memory

    def _take_less_memory(self, worker: WorkerProcess) -> None:
        """Train the models of a worker that ran out of memory again, with half the pack or half the slices;
        fail a model that can't take less. Workers that start from now on get these settings.
        """
        less = smaller(worker.job, models=len(worker.pieces))
        if less is None:
            slices = f"slices of {worker.job.expert.micro_batch or worker.job.train.batch}"
            for piece in worker.pieces.values():
                reason = f"out of memory, alone and in {slices}: {worker.crash}"
                self._fail(piece, worker=worker.number, reason=reason)
            return
        job = smallest(less, self._settings.job)
        self._settings, self._places = with_job(self._settings, job), min(self._places, job.expert.pack)
        now = {"pack": job.expert.pack, "micro_batch": job.expert.micro_batch}
        self._emit({"event": "out_of_memory", "worker": worker.number, **now, "reason": worker.crash})
        why = f"out of memory: now {job.expert.pack} together"
        if job.expert.micro_batch:
            why += f", in slices of {job.expert.micro_batch}"
        pieces = worker.pieces.values()
        self._again(pieces, worker=worker.number, reason=why, places=self._places)


def _failure(piece: Piece, event: dict[str, Any]) -> dict[str, Any]:
    """Return the event of a piece that failed: a trial has ended."""
    return failed_trial(piece, event) if piece.trial else event


def _cause(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        return f"its worker was killed by signal {-exit_code}"
    return f"its worker ended with exit code {exit_code}"
