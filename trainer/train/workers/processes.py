"""The processes of workers and of their helpers, as the supervisor starts and ends them."""

from __future__ import annotations

import math
import multiprocessing
from dataclasses import dataclass, field
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from trainer.base.silence import ProgressClock
from trainer.job.job import Job
from trainer.job.pieces.piece import Piece
from trainer.train.child_processes import ctrl_c_blocked
from trainer.train.workers.assignment import WorkerSettings
from trainer.train.workers.helpers import help_worker
from trainer.train.workers.station import let_threads_sleep


@dataclass(kw_only=True)
class WorkerProcess:
    """A worker's process and those of its helpers, and what it is doing."""

    number: int
    process: BaseProcess
    connection: Connection
    helpers: list[BaseProcess]
    pieces: dict[str, Piece] = field(default_factory=dict)  # that it has, by name
    scoring: set[str] = field(default_factory=set)  # of them, those whose places are free again
    alone: bool = False  # it retries one model without neighbours
    crash: str = ""
    last: str = ""  # source of the last piece, whose rows it still holds
    staged: set[str] = field(default_factory=set)  # sources that its helpers read ahead
    device: str
    job: Job  # with its settings of memory
    clock: ProgressClock
    out_of_memory: bool = False
    silent: bool = False  # it made no progress, and is being ended
    kill_at: float = math.inf  # when it has had the time to write its stacks

    def kill(self) -> None:
        """Kill its process and those of its helpers."""
        for process in (self.process, *self.helpers):
            process.kill()

    def join(self) -> None:
        """Wait for their ends."""
        for process in (self.process, *self.helpers):
            process.join()
        self.connection.close()

    @property
    def held(self) -> set[str]:
        """Return the sources whose rows it holds."""
        return {self.last, *(self.pieces[name].source for name in self.pieces.keys() - self.scoring)} - {""}

    @property
    def training(self) -> int:
        """Return how many of its places are taken."""
        return len(self.pieces) - len(self.scoring)


def worker_context(kind: str) -> Any:
    """Return the multiprocessing context that starts workers and helpers: forks of a server, which starts to
    load torch in the background.

    CUDA does not survive a fork; the server never begins it, as torch asks
    (https://docs.pytorch.org/docs/stable/notes/multiprocessing.html, 2026-11-27).
    """
    if kind == "cpu":
        let_threads_sleep()
    multiprocessing.set_forkserver_preload(["torch", "trainer.train.workers.worker"])
    with ctrl_c_blocked():
        forkserver.ensure_running()
    return multiprocessing.get_context("forkserver")


def start_helpers(
    context: Any, settings: WorkerSettings, *, number: int, count: int
) -> tuple[list[BaseProcess], list[Connection]]:
    """Start `count` helpers of a worker; return them, and the worker's ends of their lines."""
    helpers, lines = list[BaseProcess](), list[Connection]()
    for _ in range(count):
        ours, theirs = context.Pipe()
        helper = context.Process(
            target=help_worker, args=(settings, theirs), name=f"helper-{number}", daemon=True
        )
        with ctrl_c_blocked():
            helper.start()
        theirs.close()
        helpers.append(helper)
        lines.append(ours)
    return helpers, lines
