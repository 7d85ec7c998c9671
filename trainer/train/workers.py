"""The one supervisor: a queue of models, a process for each worker, a second chance for models whose worker died.

Work is handed out longest first, so that no worker sits idle long at the end. What a worker does is `worker.py`.
"""

from __future__ import annotations

import multiprocessing
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from trainer.train.devices import device_of
from trainer.train.task import Task
from trainer.train.worker import WorkerSettings, work

Emit = Callable[[dict[str, Any]], None]


@dataclass(kw_only=True)
class Outcome:
    """How it went, by model name."""

    done: dict[str, dict[str, Any]] = field(default_factory=dict)  # its model_done event
    failed: dict[str, dict[str, Any]] = field(default_factory=dict)  # its model_failed event
    retries: int = 0


@dataclass(kw_only=True)
class _Worker:
    number: int
    process: BaseProcess
    connection: Connection
    task: Task | None = None
    crash: str = ""


class Supervisor:
    """Train tasks on workers; `close` (or leaving the `with`) ends every worker at once."""

    def __init__(self, *, kind: str, num_workers: int, settings: WorkerSettings, emit: Emit) -> None:
        self._kind, self._num_workers, self._settings, self._emit = kind, num_workers, settings, emit
        # CUDA does not survive a fork. On a CPU, workers are forked from a server that has torch loaded already.
        self._context: Any = multiprocessing.get_context("spawn" if kind == "cuda" else "forkserver")
        if kind == "cpu":
            self._context.set_forkserver_preload(["torch", "trainer.train.worker"])
        self._workers: dict[int, _Worker] = {}
        self._queue: deque[Task] = deque()
        self._tries: dict[str, int] = {}
        self._outcome = Outcome()

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, tasks: Iterable[Task]) -> Outcome:
        """Train every task, longest first; return when each is done or has failed."""
        self._queue.extend(sorted(tasks, key=lambda task: (-task.estimate, task.model)))
        while self._queue or any(worker.task for worker in self._workers.values()):
            self._hand_out()
            self._listen()
        return self._outcome

    def close(self) -> None:
        """Kill every worker and see it end: finished models are on disk already, and half a one is worth nothing."""
        for worker in self._workers.values():
            worker.process.kill()
        for worker in self._workers.values():
            worker.process.join()
            worker.connection.close()
        self._workers.clear()

    def _hand_out(self) -> None:
        for number in range(self._num_workers):
            if not self._queue:
                return
            worker = self._workers.get(number) or self._start(number)
            if worker.task is None:
                worker.task = self._queue.popleft()
                with suppress(OSError):  # it died while idle: `_listen` sees that and tries the task again
                    worker.connection.send(worker.task)

    def _start(self, number: int) -> _Worker:
        ours, theirs = self._context.Pipe()
        arguments = (number, device_of(self._kind, number), self._settings, theirs)
        process = self._context.Process(target=work, args=arguments, name=f"worker-{number}", daemon=True)
        process.start()
        theirs.close()
        self._workers[number] = _Worker(number=number, process=process, connection=ours)
        return self._workers[number]

    def _listen(self) -> None:
        """Wait for news from any worker, and act on it."""
        by_handle: dict[Any, _Worker] = {}
        for worker in self._workers.values():
            by_handle[worker.connection] = by_handle[worker.process.sentinel] = worker
        ready = wait(list(by_handle))
        for worker in {id(found): found for found in (by_handle[handle] for handle in ready)}.values():
            # What it said before it died still counts, so its messages come before its end.
            alive = self._read(worker)
            if not alive or not worker.process.is_alive():
                self._read(worker)
                self._bury(worker)

    def _read(self, worker: _Worker) -> bool:
        try:
            while worker.connection.poll():
                self._hear(worker, worker.connection.recv())
        except (EOFError, OSError):
            return False
        return True

    def _hear(self, worker: _Worker, event: dict[str, Any]) -> None:
        kind = event["event"]
        if kind == "crashed":
            worker.crash = event["reason"]
            return
        self._emit(event)
        if kind in ("model_done", "model_failed"):
            (self._outcome.done if kind == "model_done" else self._outcome.failed)[event["model"]] = event
            worker.task = None

    def _bury(self, worker: _Worker) -> None:
        """Clear away a dead worker, and queue its model again or report it."""
        del self._workers[worker.number]
        worker.process.kill()  # its pipe may have closed before it ended
        worker.process.join()
        worker.connection.close()
        if worker.task is None:
            return
        task, reason = worker.task, worker.crash or _cause(worker.process.exitcode)
        self._tries[task.model] = self._tries.get(task.model, 0) + 1
        identity = {"model": task.model, "symbol": task.symbol, "worker": worker.number, "reason": reason}
        if self._tries[task.model] <= self._settings.job.retries:
            self._outcome.retries += 1
            self._queue.appendleft(task)
            self._emit({"event": "retry", **identity})
        else:
            self._outcome.failed[task.model] = {"event": "model_failed", **identity}
            self._emit(self._outcome.failed[task.model])


def _cause(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        return f"its worker was killed by signal {-exit_code}"
    return f"its worker ended with exit code {exit_code}"
