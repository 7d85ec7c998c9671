"""A worker: the process that owns one device (or one core) and trains one model after another as the supervisor hands them out.

It ends when the supervisor does, however that ends: a thread waits for the supervisor's death and ends this process at once.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from trainer.config import Job
from trainer.errors import TrainerError
from trainer.train.cpu import keep_freed_memory, use_one_thread
from trainer.train.task import Task, run_task


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    """What every worker is told once."""

    job: Job
    data: Path
    out: Path


def work(number: int, device: str, settings: WorkerSettings, connection: Connection) -> None:
    """Train the tasks that arrive on `connection` until None arrives; send events, the last of a task being done or failed."""
    _end_with_the_supervisor()
    # Ctrl-C reaches the whole terminal group; what it means is the supervisor's decision.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    use_one_thread()
    if device == "cpu":
        keep_freed_memory()
    else:
        torch.cuda.set_device(device)
    identity = {"worker": number, "pid": os.getpid()}

    def report(event: dict[str, Any]) -> None:
        connection.send({**event, **identity})

    while (task := connection.recv()) is not None:
        report({"event": "model_started", "model": task.model, "symbol": task.symbol})
        try:
            report(run_task(task, settings.job, data=settings.data, out=settings.out, device=device, report=report))
        except TrainerError as error:
            # The same again would end the same: reported, not retried.
            report(_failed(task, str(error), error.as_dict()))
        except BaseException as error:  # broad on purpose: the supervisor hears why, then this process ends as it would have
            traceback.print_exc(file=sys.stderr)
            report({"event": "crashed", "model": task.model, "reason": f"{type(error).__name__}: {error}"[:500]})
            raise


def _failed(task: Task, reason: str, error: dict[str, Any]) -> dict[str, Any]:
    return {"event": "model_failed", "model": task.model, "symbol": task.symbol, "reason": reason, "error": error}


def _end_with_the_supervisor() -> None:
    supervisor = multiprocessing.parent_process()
    if supervisor is None:
        return

    def wait() -> None:
        supervisor.join()  # returns when the supervisor's end of a pipe closes, kill -9 included
        os._exit(1)

    threading.Thread(target=wait, name="supervisor-watch", daemon=True).start()
