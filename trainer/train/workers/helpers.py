"""Helpers of a worker: processes on cores that would be idle, which read its sources and score its models.

The supervisor starts them beside the worker and ends them with it. A task is a generator function: it gets
the worker's settings, and what it yields are its results, in order. Readers send a source as soon as it is
read, and its baselines once they are computed. None of them touches a GPU.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from trainer.base.errors import problem_of
from trainer.base.process_state import write_stacks_at_abort
from trainer.base.signs import tell_signs
from trainer.job.pieces.piece import Piece
from trainer.train.child_processes import end_with_the_parent
from trainer.train.cpu import keep_freed_memory, use_one_thread
from trainer.train.evaluate.evaluation import Baselines
from trainer.train.evaluate.scores import Outputs
from trainer.train.hardware import Hardware
from trainer.train.inputs.arriving import LOOK_SECONDS
from trainer.train.inputs.source import Source, read_source
from trainer.train.piece import Opened, close_piece
from trainer.train.workers.assignment import WorkerSettings
from trainer.train.workers.line import Line

MOST_HELPERS = 4  # of a worker: more would only wait for it
# Of host memory, by `source_gib`: what is being read, but one source at least; and what is read ahead.
STAGE_GIB = 1.0

LOST = "a process that reads and scores for it has ended"

Foreseen = Mapping[int, list[Baselines]]  # of a source, by fold
Task = Callable[..., Iterator[Any]]


def helpers_of(*, kind: str, num_workers: int, cores: int) -> int:
    """Return how many helpers each worker has: with a GPU those that its share of the cores allows, one at
    least; on a CPU none where every core trains.
    """
    if kind != "cuda" and num_workers >= cores:
        return 0
    return max(1, min(MOST_HELPERS, cores // num_workers - 1))


def help_worker(settings: WorkerSettings, connection: Connection) -> None:
    """Do the tasks that arrive on `connection` until the worker or the supervisor ends."""
    end_with_the_parent()
    write_stacks_at_abort()
    use_one_thread()
    keep_freed_memory()
    line = Line(connection)
    tell_signs(lambda event: line.send(("event", event)))
    do_tasks(settings, line)


def do_tasks(settings: WorkerSettings, line: Line) -> None:
    """Do the tasks of a line, one after another, until its other end is gone."""
    while True:
        try:
            task, arguments = line.receive()
        except (EOFError, OSError):
            return
        try:
            for value in task(settings, *arguments):
                line.send(("result", value))
        except Exception as error:  # broad on purpose: one that is not ours ends the worker, which reports it
            is_known = problem_of(error) is not None
            if not is_known:
                traceback.print_exc(file=sys.stderr)
            told = error if is_known else RuntimeError(f"{type(error).__name__}: {error}"[:500])
            line.send(("error", told))


def read(settings: WorkerSettings, piece: Piece, refit: bool) -> Iterator[Source | Foreseen]:
    """Yield the source of a piece, then the baselines of its folds; none for a refit, which is not scored."""
    source = read_source(piece, settings.job, settings.data, refit=refit, whole=False)
    yield source
    yield {} if refit else {fold: source.baselines(fold) for fold in source.folds}


def score(
    settings: WorkerSettings,
    opened: Opened,
    baselines: list[Baselines],
    outputs: Outputs,
    hardware: Hardware,
) -> Iterator[dict[str, Any]]:
    """Score a trained model and write it; yield its `model_done` event."""
    opened = opened.with_baselines(baselines)
    known: Any = {"out": settings.out, "hardware": hardware, "choice": settings.choice}
    yield close_piece(opened, outputs, settings.job, **known)


@dataclass(frozen=True, kw_only=True)
class Reading:
    """A source that a helper reads, and its baselines, which come later."""

    source: Future[Source]
    foreseen: Future[Foreseen]


def read_here(read: Callable[[], Source], *, refit: bool) -> Reading:
    """Begin to read a source on a thread of this process: its rows are in a file, which can't be sent."""
    thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="reading")
    source = thread.submit(read)

    def foresee() -> Foreseen:
        return {} if refit else {fold: source.result().baselines(fold) for fold in source.result().folds}

    reading = Reading(source=source, foreseen=thread.submit(foresee))
    thread.shutdown(wait=False)
    return reading


@dataclass(frozen=True, kw_only=True)
class _Asked:
    task: Task
    arguments: tuple[Any, ...]
    results: Sequence[Future[Any]]
    ahead: bool  # of need: others go first
    gib: float
    is_ready: Callable[[], bool]  # whether what it reads is there


class Helpers:
    """The worker's end: a thread for each helper gives it one task after another. Any thread may ask."""

    def __init__(self, connections: Sequence[Connection], report: Callable[[dict[str, Any]], None]) -> None:
        """`report` receives signs of progress, on the threads of the helpers."""
        self._report = report
        self._tasks: list[_Asked] = []
        self._changed = threading.Condition()
        self._reading: list[float] = []  # GiB of each task in hand: sums of them never return to 0 exactly
        self._is_lost = False
        self.count = len(connections)
        for connection in connections:
            threading.Thread(target=self._serve, args=(Line(connection),), name="helper", daemon=True).start()

    def read(
        self,
        piece: Piece,
        *,
        ahead: bool = False,
        refit: bool = False,
        is_ready: Callable[[], bool] = lambda: True,
    ) -> Reading:
        """Begin to read a piece's source once it `is_ready`; `ahead` of need: after what is needed."""
        known: Any = {"ahead": ahead, "gib": piece.memory_gib, "is_ready": is_ready}
        source, foreseen = self._ask(read, piece, refit, results=2, **known)
        return Reading(source=source, foreseen=foreseen)

    def score(
        self,
        opened: Opened,
        baselines: list[Baselines],
        outputs: Outputs,
        hardware: Hardware,
    ) -> Future[dict[str, Any]]:
        """Begin to score a trained model and to write it. `opened` is what `Opened.trained` returns."""
        (done,) = self._ask(score, opened, baselines, outputs, hardware)
        return done

    def _ask(
        self,
        task: Task,
        *arguments: Any,
        results: int = 1,
        ahead: bool = False,
        gib: float = 0.0,
        is_ready: Callable[[], bool] = lambda: True,
    ) -> Sequence[Future[Any]]:
        asked = _Asked(
            task=task,
            arguments=arguments,
            results=[Future() for _ in range(results)],
            ahead=ahead,
            gib=gib,
            is_ready=is_ready,
        )
        with self._changed:
            if self._is_lost:
                _fail(asked.results, RuntimeError(LOST))
            else:
                self._tasks.append(asked)
            self._changed.notify_all()
        return asked.results

    def _serve(self, line: Line) -> None:
        while True:
            asked = self._next()
            left = list(asked.results)
            try:
                if left[0].set_running_or_notify_cancel():
                    line.send((asked.task, asked.arguments))
                    while left:
                        kind, value = line.receive()
                        if kind == "event":
                            self._report(value)
                        elif kind == "result":
                            left.pop(0).set_result(value)
                        else:
                            _fail(left, value)
                            left.clear()
            except (EOFError, OSError):
                return self._lose(left, LOST)
            except Exception as error:  # broad on purpose: who asked would wait for ever
                return self._lose(left, f"{type(error).__name__}: {error}"[:500])
            finally:
                with self._changed:
                    self._reading.remove(asked.gib)
                    self._changed.notify_all()

    def _next(self) -> _Asked:
        """Wait for a task whose files are there, and that fits into the bound of memory beside those in hand;
        return it.
        """
        with self._changed:
            while True:
                is_waiting = False
                for asked in sorted(self._tasks, key=lambda one: one.ahead):  # stable: else in their order
                    if not any(self._reading) or sum(self._reading, asked.gib) <= STAGE_GIB or not asked.gib:
                        if asked.is_ready():
                            self._tasks.remove(asked)
                            self._reading.append(asked.gib)
                            return asked
                        is_waiting = True
                self._changed.wait(LOOK_SECONDS if is_waiting else None)

    def _lose(self, left: list[Future[Any]], reason: str) -> None:
        """Fail everything that was asked: a helper is lost, and the worker will be."""
        with self._changed:
            tasks, self._tasks, self._is_lost = self._tasks, [], True
        for futures in (left, *(list(asked.results) for asked in tasks)):
            _fail(futures, RuntimeError(reason))


def _fail(futures: Sequence[Future[Any]], error: BaseException) -> None:
    for future in futures:
        if not future.cancelled():
            future.set_exception(error)
