"""A worker: the process that owns one device (or one core) and trains the models that the supervisor assigns.

It ends with the supervisor: a thread waits for the supervisor's death and then ends this process at once.
Another thread receives messages, so that helpers (`helpers.py`), where it has some, begin to read what is to
be trained next. They also score what is trained. Without helpers this process reads and scores itself.
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
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import torch

from trainer.base.errors import DataError, TrainerError, problem_of
from trainer.base.freed_memory import release_freed_memory
from trainer.base.process_state import write_stacks_at_abort
from trainer.base.signs import tell_signs
from trainer.job.pieces.piece import Piece
from trainer.train.child_processes import end_with_the_parent
from trainer.train.evaluate.evaluation import Baselines
from trainer.train.evaluate.scores import Outputs
from trainer.train.inputs.arriving import LOOK_SECONDS
from trainer.train.inputs.source import JobData, Source, SourceCache, on_device, read_source, source_of
from trainer.train.loop import train
from trainer.train.machine_file import CheckpointInterval
from trainer.train.notice import Notice
from trainer.train.observing.meter import with_memory
from trainer.train.packs.pack import Member, ModelState, Pack
from trainer.train.packs.strategy import form_pack, places_of
from trainer.train.piece import Opened, kept, open_piece
from trainer.train.run import Run
from trainer.train.stages import Stages
from trainer.train.tuning.timing import is_out_of_memory
from trainer.train.workers.assignment import Drop, ReadAhead, WorkerSettings
from trainer.train.workers.helpers import STAGE_GIB, Helpers, Reading, read_here
from trainer.train.workers.piece_files import PieceFiles
from trainer.train.workers.staging import Staging
from trainer.train.workers.station import Station, set_up_process


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
    except BaseException as error:  # broad on purpose: report it, then end
        if problem_of(error) is None:
            traceback.print_exc(file=sys.stderr)
        roster.report(crash_of(error))
        sys.exit(1)


def crash_of(error: BaseException) -> dict[str, Any]:
    """Return the event of an error that ends this worker."""
    reason = str(problem_of(error) or f"{type(error).__name__}: {error}")[:500]
    return {"event": "crashed", "reason": reason, "out_of_memory": is_out_of_memory(error)}


def _former(
    station: Station, settings: WorkerSettings, report: Callable[[dict[str, Any]], None]
) -> Callable[[Sequence[Member]], Pack]:
    """Return the function that forms the worker's packs; with `trace_steps` it records steps of the first
    pack.
    """

    form = partial(form_pack, job=settings.job, cores=station.cores)
    if not settings.job.expert.trace_steps:
        return form
    from trainer.train.observing.trace import traced  # late: the profiler loads slowly

    file, on_gpu = settings.out / "trace" / f"worker-{station.number}.json.gz", station.device != "cpu"
    return traced(form, steps=settings.job.expert.trace_steps, file=file, report=report, on_gpu=on_gpu)


@dataclass(frozen=True, kw_only=True)
class _Arrival:
    """A piece that is to begin, or to continue with its next stage. `reading`: its source, if a helper reads
    it or has read it; `staged`: ahead of need.
    """

    piece: Piece
    reading: Reading | None
    staged: bool = False
    stages: Stages | None = None  # that this process has finished

    def is_ready(self, data: JobData) -> bool:
        """Return whether nothing has to be waited for: without helpers its source is read when it starts, if
        its files are there.
        """
        return data.has(self.piece) if self.reading is None else self.reading.source.done()


@dataclass(frozen=True, kw_only=True)
class _Woken:
    """A message of a helper's thread: a source was read, or the error that ends this process."""

    error: BaseException | None = None


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
        self._sending = threading.Lock()
        self._helpers = Helpers(station.helpers, self.report) if station.helpers else None
        self._staging = Staging(self._begin_ahead)
        self._begun: dict[str, Reading] = {}  # sources of pieces that have arrived
        scored_at_once = 2 * len(station.helpers)  # more would hold more and more memory
        self._scoring = threading.BoundedSemaphore(max(1, scored_at_once))
        self._num_scored_at_once = scored_at_once
        self._arrived: queue.SimpleQueue[_Arrival | _Woken] = queue.SimpleQueue()
        self._waiting: list[_Arrival] = []  # in order, not started
        self._unscored: list[tuple[Opened, Outputs]] = []  # whose rows go first
        self._files = PieceFiles(settings, station.device, self.report)
        threading.Thread(target=self._listen, name="supervisor-messages", daemon=True).start()

    def report(self, event: dict[str, Any]) -> None:
        """Send an event to the supervisor. Called by other threads, too."""
        with self._sending:
            self._connection.send({**with_memory(event, self._device), **self._identity})

    def arrivals(self, free: int, *, wait: bool, make_room: Callable[[], None]) -> list[Run]:
        """See `loop.Roster`. The supervisor sends no more pieces than there are places.

        A piece whose source is still being read keeps nobody waiting: others train, or start, without it.
        """
        if self._unscored:
            make_room()
            self._sources = SourceCache()
            self._score_without_rows()
        runs: list[Run] = []
        while len(runs) < free:
            arrival = self._next(wait=wait and not runs)
            if arrival is None:
                break
            torch.set_num_threads(arrival.piece.threads)  # also for reading and scoring
            try:
                runs += self._begun_run(arrival, make_room)
            except TrainerError as error:
                self._fail(arrival.piece, error)
        return runs

    def _begun_run(self, arrival: _Arrival, make_room: Callable[[], None]) -> list[Run]:
        """Return the run of a piece's next stage; none of a piece that needs no training. Raises
        TrainerError.
        """
        piece, stages, checkpoint = arrival.piece, arrival.stages, None
        if stages is None:
            started = {"event": "model_started", **piece.identity, "staged": arrival.staged}
            self.report({**started, **({"threads": piece.threads} if piece.threads > 1 else {})})
            if done := self._kept(piece):
                self.report({**done, "kept": True})
                return []
            checkpoint, stages = self._files.newest(piece)
        source = self._source(arrival, make_room, refit=stages.on_all_bars)
        source = source_of(source, piece, self._settings.job, self._settings.data)
        opened = open_piece(piece, self._settings.job, source, stages=stages)
        self._opened[piece.name] = opened
        if arrival.stages is None:
            self._files.resume(opened, checkpoint)
        return [opened.run]

    def checkpoint(self, run: Run, state: ModelState, *, snapshot_seconds: float) -> None:
        """See `loop.Roster`."""
        self._files.checkpoint(self._opened[run.member.name], run, state, snapshot_seconds=snapshot_seconds)

    def finished(self, run: Run, model: torch.nn.Module) -> None:
        """See `loop.Roster`."""
        opened = self._opened.pop(run.member.name)
        try:
            self._go_on(self._files.ended(opened), model)
        except TrainerError as error:
            self._fail(opened.piece, error)

    def stopped(self, runs: Sequence[Run]) -> None:
        """See `loop.Roster`. What helpers score is scored to its end."""
        for run in runs:
            self._files.stopped(self._opened.pop(run.member.name))
        self._score_without_rows()
        self._take_in()
        self._stop_waiting()
        for _ in range(self._num_scored_at_once):
            self._scoring.acquire()

    def _go_on(self, opened: Opened, model: torch.nn.Module) -> None:
        """Report a trial. Score another piece whose first fits have ended, and write one whose stages are
        over; the others continue with the next stage. Raises TrainerError.
        """
        piece, stages = opened.piece, opened.stages
        if piece.trial:
            return self.report(self._files.tried(opened))
        aside = stages.is_over and self._helpers is not None and not self._reads_alone(piece)
        if not stages.is_to_score:
            return self._end_or_wait(opened)
        outputs = self._files.evaluated(opened, model, aside=aside)
        if aside:
            return self._score_aside(opened, outputs)
        if self._reads_alone(piece):
            baselines = opened.source.baselines(piece.fold)
            return self._unscored.append((opened.trained().with_baselines(baselines), outputs))
        return self._end_or_wait(self._files.scored(opened, outputs))

    def _score_without_rows(self) -> None:
        """Score models whose rows are freed: scores take a sixth as much again."""
        while self._unscored:
            opened, outputs = self._unscored.pop(0)
            release_freed_memory()
            try:
                self._end_or_wait(self._files.scored(opened, outputs))
            except TrainerError as error:
                self._fail(opened.piece, error)

    def _end_or_wait(self, opened: Opened) -> None:
        """Write a piece whose stages are over; others wait for their next stage."""
        piece, stages, reading = opened.piece, opened.stages, None
        if stages.is_over:
            return self.report(self._files.finish(opened))
        if stages.on_all_bars and self._helpers is not None and not self._reads_alone(piece):
            reading = self._begin(piece, refit=True)
        return self._waiting.append(_Arrival(piece=piece, reading=reading, stages=stages))

    def _score_aside(self, opened: Opened, outputs: Outputs) -> None:
        """Have a helper score a trained model and write it, once its baselines are computed."""
        assert self._helpers is not None
        helpers, trained, foreseen = self._helpers, opened.trained(), opened.source.foreseen
        piece, hardware = opened.piece, self._files.hardware(opened.piece)
        self._scoring.acquire()

        def score(baselines: list[Baselines]) -> None:
            done = helpers.score(trained, baselines, outputs, hardware)
            done.add_done_callback(ended)

        def ended(done: Future[Any]) -> None:
            error = done.exception()
            if error is None:
                self.report(done.result())
            elif isinstance(error, TrainerError):
                self._fail(piece, error)
            else:
                self._arrived.put(_Woken(error=error))
            self._scoring.release()

        if foreseen is None:
            score(opened.source.baselines(piece.fold))
        else:
            foreseen.add_done_callback(
                lambda known: ended(known) if known.exception() else score(known.result()[piece.fold])
            )

    def _listen(self) -> None:
        """Receive the supervisor's messages. Runs on its own thread: the main thread does not read the pipe
        while it trains.
        """
        with suppress(EOFError, OSError):  # the supervisor is gone, and this process is about to end
            while True:
                message = self._connection.recv()
                if isinstance(message, ReadAhead):
                    self._staging.stage([piece for piece in message.pieces if self._is_to_train(piece)])
                elif isinstance(message, Drop):
                    if opened := self._opened.get(message.model):  # else it has ended meanwhile
                        opened.run.drop = True
                else:
                    self._arrived.put(self._arrival_of(message))

    def _arrival_of(self, piece: Piece) -> _Arrival:
        """Return a piece that has arrived. A helper begins to read its source, unless that is there, or has
        begun.
        """
        # Claimed here and not later: the next message may stage other sources.
        staged = self._staging.claim(piece.source)
        reading = staged or self._begun.get(piece.source)
        if reading is None and self._helpers is not None and self._is_to_train(piece):
            in_use = {opened.source.name for opened in list(self._opened.values())}
            if piece.source not in in_use | {self._sources.last} and not self._reads_alone(piece):
                reading = self._begin(piece)
        if reading is not None:
            self._begun[piece.source] = reading
        return _Arrival(piece=piece, reading=reading, staged=staged is not None)

    def _reads_alone(self, piece: Piece) -> bool:
        """Return whether this process reads and scores a piece itself: sent by a helper, rows that stay on
        the CPU would be there twice, and beside those before them.
        """
        return self._device == "cpu" and piece.memory_gib > STAGE_GIB

    def _begin_ahead(self, piece: Piece) -> Reading:
        return self._begin(piece, ahead=True)

    def _begin(self, piece: Piece, *, ahead: bool = False, refit: bool = False) -> Reading:
        """Have a helper read a piece's source; the main thread is woken when it is there."""
        assert self._helpers is not None
        job, data = self._settings.job, self._settings.data
        if data.rows_folder(piece, job):
            reading = read_here(lambda: read_source(piece, job, data, refit=refit, whole=False), refit=refit)
        else:
            is_ready = partial(data.has, piece)
            reading = self._helpers.read(piece, ahead=ahead, refit=refit, is_ready=is_ready)
        reading.source.add_done_callback(lambda _: self._arrived.put(_Woken()))
        return reading

    def _is_to_train(self, piece: Piece) -> bool:
        with suppress(DataError):  # planning refused a symbol: reported when the piece starts
            return self._kept(piece) is None
        return False

    def _next(self, *, wait: bool) -> _Arrival | None:
        """Return the first piece that can start; none starts after a notice. `wait`: wait for one."""
        while True:
            self._take_in()
            if self._notice.stops:
                self._stop_waiting()
            for arrival in self._waiting:
                if arrival.is_ready(self._settings.data):
                    self._waiting.remove(arrival)
                    return arrival
            if not wait:
                return None
            with suppress(queue.Empty):  # a file tells nobody that it is there, nor does a notice
                self._hear(self._arrived.get(timeout=LOOK_SECONDS if self._waiting else None))

    def _take_in(self) -> None:
        """Take in what has arrived."""
        with suppress(queue.Empty):
            while True:
                self._hear(self._arrived.get_nowait())

    def _stop_waiting(self) -> None:
        """Report that a notice stopped the pieces that wait."""
        for arrival in self._waiting:
            self.report({"event": "model_stopped", **arrival.piece.identity})
        self._waiting.clear()

    def _hear(self, message: _Arrival | _Woken) -> None:
        if isinstance(message, _Arrival):
            self._waiting.append(message)
        elif message.error is not None:
            raise message.error

    def _source(self, arrival: _Arrival, make_room: Callable[[], None], *, refit: bool) -> Source:
        """Return the source of a piece's next stage on the device."""
        piece, reading = arrival.piece, arrival.reading
        in_use = [opened.source for opened in self._opened.values()]
        self._begun.pop(piece.source, None)
        if refit and arrival.stages is None:
            reading = None  # it goes on in a refit, which was not known when it arrived
        if reading is not None:
            reading.source.result()  # its error comes before anything is freed
        make_room()

        def read() -> Source:
            if self._helpers is None or self._reads_alone(piece):
                job, data = self._settings.job, self._settings.data
                source = read_source(piece, job, data, refit=refit, whole=False)
                return on_device(source, self._device)
            by = reading or self._begin(piece, refit=refit)
            return on_device(replace(by.source.result(), foreseen=by.foreseen), self._device)

        name = f"{piece.source} refit f{piece.fold}" if refit else piece.source
        return self._sources.get(name, in_use, read)

    def _kept(self, piece: Piece) -> dict[str, Any] | None:
        return kept(piece, self._settings.job, self._settings.data, out=self._settings.out)

    def _fail(self, piece: Piece, error: TrainerError) -> None:
        # Not retried: it would fail the same way.
        failure = {**piece.identity, "reason": str(error), "error": error.as_dict()}
        self.report({"event": "model_failed", **failure})
