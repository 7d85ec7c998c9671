"""The cost of a model that reads chunks on this device: chunks a second by batch, with and without activation checkpointing.

Full size on a GPU, a small one on a core of a CPU; `--set` changes it. What it trains on is noise in the shape of
real bars: speed and memory do not depend on values. A row of the table is the median step of its share of the time. Out of
memory is an answer, too.

On a CPU every row has a process of its own, so that its memory is its own. Prices are none of this module's business.
"""

from __future__ import annotations

import math
import multiprocessing
import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from trainer.data.features import FEATURES
from trainer.gpu_profiles.memory import GIB, MINUTES_OF_SEVEN_YEARS, TRAINING_SHARE
from trainer.job import Job, job_from, with_keys, with_settings
from trainer.models import MODELS, chunk_models
from trainer.train.cpu import keep_freed_memory, use_one_thread
from trainer.train.packs.pack import Member, new_model
from trainer.train.packs.strategy import form_pack
from trainer.train.tuning.timing import is_out_of_memory

ACCUMULATION = 4  # slices of a batch on a GPU, as this model is usually trained
BATCHES = {"cuda": (16, 64, 200, 1500), "cpu": (1, 4, 16)}
QUICK_BATCHES = {"cuda": (16, 64), "cpu": (1, 8)}
SECONDS, QUICK_SECONDS = 5.0, 1.0  # of each row, after its warm-up
WARM_UP, FEWEST_STEPS = 1, 2
STATUS = Path("/proc/self/status")


@dataclass(frozen=True, kw_only=True)
class Row:
    """What training takes with so many chunks in a step, or why that is out. Memory is None where nobody tells."""

    batch: int
    activation_checkpointing: bool
    steps_per_second: float = 0.0
    chunks_per_second: float = 0.0
    memory_gib: float | None = None
    excluded: str = ""


def bench_job(kind: str, settings: dict[str, Any]) -> Job:
    """Return the job that is measured on `cuda` or `cpu`. Raises UsageError for settings that make no sense."""
    name = chunk_models()[0]
    small = MODELS[name].small if kind == "cpu" else {}
    return job_from(with_keys({}, {"model": name, **small, **settings}))


def bench(job: Job, device: torch.device, *, quick: bool, say: Callable[[str], None]) -> list[Row]:
    """Measure every batch with and without activation checkpointing, telling each as it is done."""
    rows = []
    for batch in (QUICK_BATCHES if quick else BATCHES)[device.type]:
        for recompute in (False, True):
            slices = math.ceil(batch / ACCUMULATION) if device.type == "cuda" else 0
            micro_batch = job.train.micro_batch or slices
            option = with_settings(job, batch=batch, activation_checkpointing=recompute, micro_batch=micro_batch)
            seconds = QUICK_SECONDS if quick else SECONDS
            rows.append(_on_gpu(option, device, seconds) if device.type == "cuda" else _in_a_process(option, seconds))
            say(_progress(rows[-1]))
    return rows


def epoch_seconds(job: Job, row: Row, *, bars: int = 0) -> float:
    """Return the seconds of one pass over the training chunks of so many bars (0: seven years of minutes), validation aside."""
    return num_chunks(job, bars=bars) / row.chunks_per_second


def num_chunks(job: Job, *, bars: int = 0) -> int:
    """Return how many chunks the training span of so many bars is cut into."""
    return math.ceil((bars or MINUTES_OF_SEVEN_YEARS) * TRAINING_SHARE / job.model.bars_out)


def num_parameters(job: Job) -> int:
    """Return the weights of the model."""
    return sum(weight.numel() for weight in new_model(_member(job, torch.device("cpu"), chunks=1), job).parameters())


def _progress(row: Row) -> str:
    name = f"batch {row.batch:5}, checkpointing {'on ' if row.activation_checkpointing else 'off'}"
    if row.excluded:
        return f"{name}  {row.excluded}"
    return f"{name}  {row.steps_per_second:8.2f} it/s  {row.chunks_per_second:9.2f} chunks/s"


def _on_gpu(job: Job, device: torch.device, seconds: float) -> Row:
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    try:
        step_seconds = _step_seconds(job, device, seconds)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return Row(batch=job.train.batch, activation_checkpointing=job.train.activation_checkpointing, excluded="out of memory")
    return _row(job, step_seconds, torch.cuda.max_memory_allocated(device) / GIB)


def _in_a_process(job: Job, seconds: float) -> Row:
    """Measure one row in a process that ends with it; one that the system ends for its memory is an answer."""
    # Torch is loaded once, with what its optimizers load at their first use (two seconds); nothing else is shared.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "torch._dynamo"])
    ours, theirs = context.Pipe()
    process = context.Process(target=_measure, args=(theirs, job, seconds), daemon=True)
    process.start()
    theirs.close()
    try:
        step_seconds, memory_gib = ours.recv()
    except EOFError:
        process.join()
        reason = f"its process ended ({process.exitcode}), most likely for want of memory"
        return Row(batch=job.train.batch, activation_checkpointing=job.train.activation_checkpointing, excluded=reason)
    finally:
        process.kill()
        process.join()
    return _row(job, step_seconds, memory_gib)


def _measure(pipe: Connection, job: Job, seconds: float) -> None:
    use_one_thread()
    keep_freed_memory()
    before = _resident_kib("RssAnon")
    step_seconds = _step_seconds(job, torch.device("cpu"), seconds)
    # The peak counts the libraries' pages, which are no memory of the model's.
    parts = (_resident_kib("VmHWM"), before, _resident_kib("RssFile"), _resident_kib("RssShmem"))
    known = [part for part in parts if part is not None]
    pipe.send((step_seconds, max(0, known[0] - sum(known[1:])) / 2**20 if len(known) == len(parts) else None))


def _step_seconds(job: Job, device: torch.device, seconds: float) -> float:
    """Return the median seconds of a step, device and all."""
    member = _member(job, device, chunks=max(64, job.train.batch))
    pack = form_pack([member], job)
    generator = torch.Generator().manual_seed(job.train.seed)
    found: list[float] = []
    began = time.perf_counter()
    while len(found) < WARM_UP + FEWEST_STEPS or time.perf_counter() - began < seconds:
        starts_B = torch.randperm(max(64, job.train.batch), generator=generator)[: job.train.batch] * job.model.bars_out
        starts_B = starts_B.to(device)
        before = time.perf_counter()
        pack.step([True], [starts_B]).sum().item()  # waits for the device
        found.append(time.perf_counter() - before)
        if len(found) == WARM_UP:
            began = time.perf_counter()
    return statistics.median(found[WARM_UP:])


def _row(job: Job, step_seconds: float, memory_gib: float | None) -> Row:
    return Row(
        batch=job.train.batch,
        activation_checkpointing=job.train.activation_checkpointing,
        steps_per_second=1 / step_seconds,
        chunks_per_second=job.train.batch / step_seconds,
        memory_gib=memory_gib,
    )


def _member(job: Job, device: torch.device, *, chunks: int) -> Member:
    generator = torch.Generator().manual_seed(job.train.seed)
    num_rows = chunks * job.model.bars_out + job.model.bars_seen - 1
    return Member(
        name=job.model.name,
        rows_TF=torch.randn(num_rows, len(FEATURES), generator=generator).to(device),
        labels_TK=torch.randint(0, 2, (num_rows, job.target.label_columns), generator=generator).float().to(device),
        mean_F=torch.zeros(len(FEATURES), device=device),
        std_F=torch.ones(len(FEATURES), device=device),
    )


def _resident_kib(key: str) -> int | None:
    """Return a figure of this process's memory by Linux's name for it; None on other systems."""
    with suppress(OSError):
        for line in STATUS.read_text(encoding="ascii").splitlines():
            if line.startswith(f"{key}:"):
                return int(line.split()[1])
    return None
