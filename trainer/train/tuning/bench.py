"""Measure chunks per second and memory of a model that reads chunks, by batch, with and without activation
checkpointing.

Runs the full-size model on a GPU and a small one on one core of a CPU, where each row is measured in a
process of its own, so that memory can be told apart. Prices belong to `trainer.cli.verbs.bench`.
"""

from __future__ import annotations

import math
import multiprocessing
import re
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from trainer.job.job import Job
from trainer.machines.kernels import cpu_slice
from trainer.machines.memory import (
    MINUTES_OF_SEVEN_YEARS,
    REFERENCE_FEATURES,
    TRAINING_SHARE,
)
from trainer.train.child_processes import call_in_child
from trainer.train.cpu import keep_freed_memory, use_one_thread
from trainer.train.tuning.timing import Timing, make_members, measure

ACCUMULATION = 4  # slices of a batch on a GPU: the usual number for this model
BATCHES = {"cuda": (16, 64, 200, 1500), "cpu": (1, 4, 16)}
QUICK_BATCHES = {"cuda": (16, 64), "cpu": (1, 8)}
SECONDS, QUICK_SECONDS = 5.0, 1.0  # of each row, after its warm-up
STATUS = Path("/proc/self/status")


def bench(job: Job, device: torch.device, *, quick: bool, say: Callable[[str], None]) -> list[Timing]:
    """Measure every batch with and without activation checkpointing, and report each row when it is done."""
    rows, seconds = list[Timing](), QUICK_SECONDS if quick else SECONDS
    for batch in (QUICK_BATCHES if quick else BATCHES)[device.type]:
        usual = math.ceil(batch / ACCUMULATION) if device.type == "cuda" else cpu_slice(job.cost)
        slices = min(batch, job.expert.micro_batch or usual)
        for again in (False, True):
            option = job.with_train(batch=batch).with_expert(
                strategy="sequential", pack=1, micro_batch=slices, activation_checkpointing=again
            )
            rows.append((_in_a_process if device.type == "cpu" else _timed)(option, device, seconds))
            say(_progress(rows[-1]))
    return rows


def epoch_seconds(job: Job, row: Timing, *, bars: int = 0) -> float:
    """Return the seconds of one epoch on `bars` bars (0: seven years of minutes), without validation."""
    return num_chunks(job, bars=bars) / row.windows_per_second


def num_chunks(job: Job, *, bars: int = 0) -> int:
    """Return the number of chunks in the training span of `bars` bars (0: seven years of minutes)."""
    return math.ceil((bars or MINUTES_OF_SEVEN_YEARS) * TRAINING_SHARE / job.model.bars_out)


def num_parameters(job: Job) -> int:
    """Return the model's number of weights."""
    return job.model.cost(features=REFERENCE_FEATURES, outputs=job.target.outputs).weights


def _progress(row: Timing) -> str:
    name = f"batch {row.batch:5}, checkpointing {'on ' if row.activation_checkpointing else 'off'}"
    if row.excluded:
        return f"{name}  {row.excluded}"
    return f"{name}  {row.steps_per_second:8.2f} it/s  {row.windows_per_second:9.2f} chunks/s"


def _timed(option: Job, device: torch.device, seconds: float) -> Timing:
    return measure(option, make_members(1, option, device), seconds, whole=True)


def _in_a_process(option: Job, device: torch.device, seconds: float) -> Timing:
    """Measure one row in a process of its own; if the process dies, the row is excluded."""
    # The server preloads torch and what its optimizers load on first use (two seconds).
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    answer, failure = call_in_child(context, _measure, option, device, seconds)
    if failure.endswith(f"-{signal.SIGKILL.value}"):
        failure += ", probably out of memory"
    return Timing.of(option, excluded=failure) if failure else answer


def _measure(pipe: Connection, option: Job, device: torch.device, seconds: float) -> None:
    use_one_thread()
    keep_freed_memory()
    _timed(option.with_train(batch=1), device, 0.0)  # the first step of a model loads what it takes
    before = _resident_kib("RssAnon")
    timing = _timed(option, device, seconds)
    # The peak includes pages of libraries, which are subtracted.
    parts = (_resident_kib("VmHWM"), before, _resident_kib("RssFile"), _resident_kib("RssShmem"))
    known = [part for part in parts if part is not None]
    gib = max(0, known[0] - sum(known[1:])) / 2**20 if len(known) == len(parts) else 0.0
    pipe.send(replace(timing, memory_per_model_gib=gib))


def _resident_kib(key: str) -> int | None:
    """Return a field of /proc/self/status, in KiB; None on other systems than Linux."""
    with suppress(OSError):
        field = re.search(rf"^{key}:\s+(\d+)", STATUS.read_text(encoding="ascii"), re.MULTILINE)
        return int(field[1]) if field else None
    return None
