"""A worker: the process that owns one device (or one core) and trains the models that the supervisor assigns.

It ends with the supervisor: a thread waits for the supervisor's death and then ends this process at once.
Another thread receives messages, so that the next source is read (`staging.py`) during training.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import torch

from trainer.base.errors import DataError, TrainerError
from trainer.base.process_state import write_stacks_at_abort
from trainer.base.signs import tell_signs
from trainer.job.pieces.piece import Piece
from trainer.train.child_processes import end_with_the_parent
from trainer.train.inputs.source import Source, SourceCache, on_device, read_source
from trainer.train.inputs.staging import Staging
from trainer.train.loop import Run, train
from trainer.train.machine_file import CheckpointInterval
from trainer.train.notice import Notice
from trainer.train.observing.meter import with_memory
from trainer.train.packs.pack import Member, ModelState, Pack
from trainer.train.packs.strategy import form_pack, places_of
from trainer.train.piece import Opened, kept, open_piece
from trainer.train.stages import Stages
from trainer.train.tuning.timing import is_out_of_memory
from trainer.train.workers.assignment import WorkerSettings
from trainer.train.workers.piece_files import PieceFiles
from trainer.train.workers.station import Station, set_up_process


@dataclass(frozen=True, kw_only=True)
class ReadAhead:
    """A message to a worker: the piece that it will probably train next and may read ahead; None: drop the
    staged one.
    """

    piece: Piece | None


def work(station: Station, settings: WorkerSettings, connection: Connection) -> None:
    """Train the pieces that arrive on `connection` until the supervisor ends this process; send events.

    The first event is `worker_started`, if the worker has cores or memory of its own. The last event of a
    piece is `model_done`, `model_failed` or, after a notice, `model_stopped`. `crashed` means that this
    process ends and none of its pieces is finished.
    """
    end_with_the_parent()
    write_stacks_at_abort()
    placed = set_up_process(station)
    notice = Notice(settings.notice)
    roster = _WorkerRoster(station, settings, connection, notice)
    tell_signs(roster.report)
    if placed:
        roster.report({"event": "worker_started", **placed})
    job = settings.job
    try:
        form = _former(station, settings, roster.report)
        interval = CheckpointInterval(settings.machine_file, job.train.checkpoint_seconds)
        places = places_of(job, station.device)
        train(roster, form, job, roster.report, places=places, heard=notice, interval=interval)
    except BaseException as error:  # broad on purpose: report it, then let the process end as it would have
        traceback.print_exc(file=sys.stderr)
        roster.report(crash_of(error))
        raise


def crash_of(error: BaseException) -> dict[str, Any]:
    """Return the event of an error that ends this worker."""
    reason = f"{type(error).__name__}: {error}"[:500]
    return {"event": "crashed", "reason": reason, "out_of_memory": is_out_of_memory(error)}


def _former(
    station: Station, settings: WorkerSettings, report: Callable[[dict[str, Any]], None]
) -> Callable[[Sequence[Member]], Pack]:
    """Return the function that forms the worker's packs; with `trace_steps` it records steps of the first
    pack.
    """

    form = partial(form_pack, job=settings.job)
    if not settings.job.expert.trace_steps:
        return form
    from trainer.train.observing.trace import traced  # late: the profiler loads slowly

    file, on_gpu = settings.out / "trace" / f"worker-{station.number}.json.gz", station.device != "cpu"
    return traced(form, steps=settings.job.expert.trace_steps, file=file, report=report, on_gpu=on_gpu)


@dataclass(frozen=True, kw_only=True)
class _Arrival:
    """A piece, and its source if it was staged."""

    piece: Piece
    staged: Future[Source] | None


class _WorkerRoster:
    """The worker's roster: turns pieces from the pipe into runs, and trained models into files and events."""

    def __init__(
        self, station: Station, settings: WorkerSettings, connection: Connection, notice: Notice
    ) -> None:
        self._device, self._settings, self._connection = station.device, settings, connection
        self._notice = notice
        self._identity = {"worker": station.number, "pid": os.getpid()}
        self._opened: dict[str, Opened] = {}
        self._sources = SourceCache()
        self._staging = Staging(self._read)
        self._arrived: queue.SimpleQueue[_Arrival] = queue.SimpleQueue()
        self._waiting: list[_Arrival] = []  # in order, not started
        self._continued: list[tuple[Piece, Stages]] = []  # pieces whose next stage has not begun
        threading.Thread(target=self._listen, name="supervisor-messages", daemon=True).start()
        self._sending = threading.Lock()
        self._files = PieceFiles(settings, station.device, self.report)

    def report(self, event: dict[str, Any]) -> None:
        """Send an event to the supervisor. Called by the checkpoint thread, too."""
        with self._sending:
            self._connection.send({**with_memory(event, self._device), **self._identity})

    def arrivals(self, free: int, *, wait: bool) -> list[Run]:
        """See `loop.Roster`. The supervisor sends no more pieces than there are places.

        While other models train, a piece whose source is still being read waits, so that they don't have to.
        """
        runs: list[Run] = []
        while self._continued and len(runs) < free:
            runs += self._next_stage(*self._continued.pop(0))
        while len(runs) < free:
            arrival = self._next(wait=wait and not runs, may_block=wait)
            if arrival is None:
                break
            piece = arrival.piece
            if self._notice.stops:  # nothing of it is lost: it has not begun
                self.report({"event": "model_stopped", **piece.identity})
                continue
            started = {"event": "model_started", **piece.identity, "staged": arrival.staged is not None}
            self.report({**started, **({"threads": piece.threads} if piece.threads > 1 else {})})
            torch.set_num_threads(piece.threads)  # also for reading and scoring
            try:
                if done := self._kept(piece):
                    self.report({**done, "kept": True})
                    continue
                checkpoint, stages = self._files.newest(piece)
                source = self._refit_source(piece) if stages.on_all_bars else self._source(arrival)
                opened = open_piece(piece, self._settings.job, source, stages=stages)
            except TrainerError as error:
                self._fail(piece, error)
                continue
            self._opened[piece.name] = opened
            self._files.resume(opened, checkpoint)
            runs.append(opened.run)
        return runs

    def _next_stage(self, piece: Piece, stages: Stages) -> list[Run]:
        """Return the run of a piece's next stage; none if it can't be read."""
        torch.set_num_threads(piece.threads)
        try:
            source = self._refit_source(piece) if stages.on_all_bars else self._again(piece)
            opened = open_piece(piece, self._settings.job, source, stages=stages)
        except TrainerError as error:
            self._fail(piece, error)
            return []
        self._opened[piece.name] = opened
        return [opened.run]

    def checkpoint(self, run: Run, state: ModelState, *, snapshot_seconds: float) -> None:
        """See `loop.Roster`."""
        self._files.checkpoint(self._opened[run.member.name], run, state, snapshot_seconds=snapshot_seconds)

    def finished(self, run: Run, model: torch.nn.Module) -> None:
        """See `loop.Roster`."""
        opened = self._opened.pop(run.member.name)
        try:
            opened = self._files.ended(opened)
            if opened.stages.is_to_score:
                opened = self._files.scored(opened, self._files.evaluated(opened, model))
            if opened.stages.is_over:
                self.report(self._files.finish(opened))
            else:
                self._continued.append((opened.piece, opened.stages))
        except TrainerError as error:
            self._fail(opened.piece, error)

    def stopped(self, runs: Sequence[Run]) -> None:
        """See `loop.Roster`."""
        for run in runs:
            self._files.stopped(self._opened.pop(run.member.name))

    def _listen(self) -> None:
        """Receive the supervisor's messages. Runs on its own thread: the main thread does not read the pipe
        while it trains.
        """
        with suppress(EOFError, OSError):  # the supervisor is gone, and this process is about to end
            while True:
                message = self._connection.recv()
                if isinstance(message, ReadAhead):
                    self._stage(message.piece)
                else:
                    # Claimed here and not later: the next message may stage another source.
                    self._arrived.put(_Arrival(piece=message, staged=self._staging.claim(message.source)))

    def _stage(self, piece: Piece | None) -> None:
        """Read a piece's source ahead, unless the piece needs no training."""
        with suppress(DataError):  # planning refused a symbol: reported when the piece starts
            if piece is None or self._kept(piece) is None:
                self._staging.stage(piece)

    def _next(self, *, wait: bool, may_block: bool) -> _Arrival | None:
        """Return the first piece that can start. `wait`: wait for one. `may_block`: also one whose source is
        being read.
        """
        with suppress(queue.Empty):
            while True:
                self._waiting.append(self._arrived.get_nowait())
        if wait and not self._waiting:
            return self._arrived.get()
        unread = {one.piece.source for one in self._waiting if one.staged and not one.staged.done()}
        for arrival in self._waiting:
            if may_block or arrival.piece.source not in unread:
                self._waiting.remove(arrival)
                return arrival
        return None

    def _source(self, arrival: _Arrival) -> Source:
        def read() -> Source:
            return arrival.staged.result() if arrival.staged is not None else self._read(arrival.piece)

        return self._cached(arrival.piece.source, read)

    def _again(self, piece: Piece) -> Source:
        """Return the source of a piece for its next network: the one that was just in use."""
        return self._cached(piece.source, lambda: self._read(piece))

    def _refit_source(self, piece: Piece) -> Source:
        def read() -> Source:
            return read_source(piece, self._settings.job, self._settings.data, refit=True)

        return self._cached(f"{piece.source} refit f{piece.fold}", read)

    def _cached(self, name: str, read: Callable[[], Source]) -> Source:
        in_use = [opened.source for opened in self._opened.values()]
        return self._sources.get(name, in_use, lambda: on_device(read(), self._device))

    def _read(self, piece: Piece) -> Source:
        return read_source(piece, self._settings.job, self._settings.data)

    def _kept(self, piece: Piece) -> dict[str, Any] | None:
        return kept(piece, self._settings.job, self._settings.data, out=self._settings.out)

    def _fail(self, piece: Piece, error: TrainerError) -> None:
        # Not retried: it would fail the same way.
        failure = {**piece.identity, "reason": str(error), "error": error.as_dict()}
        self.report({"event": "model_failed", **failure})
