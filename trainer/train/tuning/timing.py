"""Time a job's settings on this device: windows per second and memory, on rows of noise in the shape of real
ones, with the losses of the first steps.

`trainer.train.tuning.trial` compares several and chooses.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from trainer.base.settings import CHUNKS, CONTEXT, WINDOWS
from trainer.job.job import Job
from trainer.job.reading import job_from
from trainer.machines.memory import GIB
from trainer.machines.shapes import OPEN
from trainer.train.packs.pack import Member
from trainer.train.packs.recorded import EAGER_STEPS
from trainer.train.packs.strategy import form_pack

ROWS = 20_000  # of each model: enough to exceed the caches
CHUNK_PLACES = 64  # least number of chunks in the rows of a model that reads chunks
CPU_READS = {WINDOWS: 256, CHUNKS: 1}  # per timed step on a CPU; at least a slice
FEWEST_STEPS = 2  # timed
COMPARED_STEPS = 10  # whose losses a timing has
OUT_OF_MEMORY = "out of memory"
# Texts of plain RuntimeErrors: torch's allocator on a CPU; the driver, for a graph or a kernel; NVIDIA's
# libraries.
_NO_MEMORY = ("can't allocate memory", "out of memory", "_STATUS_ALLOC_FAILED")


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Speed and memory of a job's settings, or the reason for excluding them."""

    strategy: str
    pack: int
    micro_batch: int
    activation_checkpointing: bool = False
    batch: int = 0
    windows_per_second: float = 0.0  # or chunks
    steps_per_second: float = 0.0
    memory_per_model_gib: float = 0.0
    excluded: str = ""
    losses: tuple[list[float], ...] = field(default=(), repr=False)  # of the first steps, by model

    @classmethod
    def of(cls, job: Job, **values: Any) -> Timing:
        """Return the timing of a job's settings."""
        settings = {name: getattr(job.expert, name) for name in OPEN}
        return cls(**settings, batch=job.train.batch, **values)

    def to_dict(self) -> dict[str, Any]:
        """Return it as events and `--json` have it."""
        return {key: value for key, value in asdict(self).items() if key != "losses"}


def measure(
    job: Job, members: Sequence[Member], seconds: float, *, whole: bool = False, steps: int = FEWEST_STEPS
) -> Timing:
    """Train the members with the job's settings for about `seconds`, at least so many steps; return the
    timing.

    Settings that run out of memory are excluded. So are those with any other error of torch's, except plain
    modules, whose error is raised: no other would work. On a CPU a step takes only a few slices of the batch
    unless `whole`: slices cost the same, and the optimizer little.
    """
    cuda, expert = members[0].rows_TF.device.type == "cuda", job.expert
    before, reads = 0, job.train.batch
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        # Without the rows of members of larger packs.
        before = peak_bytes(now=True) - _bytes_of(members)
    elif not whole:
        reads = min(reads, max(expert.micro_batch, CPU_READS[job.model.reads]))
    try:
        step_seconds, losses = _steps(job.with_train(batch=reads), members, seconds, fewest=steps)
    except RuntimeError as error:
        if expert.strategy == "sequential" and not is_out_of_memory(error):
            raise
        return Timing.of(job, excluded=reason_of(error))
    memory = (peak_bytes() - before) / GIB if cuda else 0.0
    return Timing.of(
        job,
        windows_per_second=reads * len(members) / step_seconds,
        steps_per_second=reads / job.train.batch / step_seconds,
        memory_per_model_gib=memory / len(members),
        losses=losses,
    )


def peak_bytes(*, now: bool = False) -> int:
    """Return the most bytes of the GPU that torch reserved, or what it reserves now.

    What it allocated is less: recorded graphs keep their blocks.
    """
    return torch.cuda.memory_reserved() if now else torch.cuda.max_memory_reserved()


def warm_up(device: torch.device) -> None:
    """Take a few tiny steps, in the first of which torch loads libraries for two seconds."""
    job = job_from({"model": {"hidden": 1, "layers": 1, "lookback": 1}, "train": {"batch": 1}})
    measure(job.with_expert(strategy="sequential", pack=1, micro_batch=1), make_members(1, job, device), 0.0)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether torch ran out of memory, or raised this error while handling that, as a
    recording does.
    """
    if isinstance(error, torch.OutOfMemoryError) or any(text in str(error) for text in _NO_MEMORY):
        return True
    return error.__context__ is not None and is_out_of_memory(error.__context__)


def reason_of(error: RuntimeError) -> str:
    """Return, as one line, why a strategy that raised this error is excluded."""
    return OUT_OF_MEMORY if is_out_of_memory(error) else f"it fails here: {str(error).partition(chr(10))[0]}"


def make_members(count: int, job: Job, device: torch.device) -> list[Member]:
    """Return `count` models with rows of noise in the shape of real ones: speed and memory do not depend on
    values.
    """
    generator = torch.Generator().manual_seed(job.train.seed)
    rows, columns = places(job) * job.model.bars_out + job.model.bars_seen, job.target.label_columns
    features = len(job.data.inputs)
    context_RC = torch.ones(rows, len(CONTEXT), dtype=torch.int16, device=device)
    return [
        Member(
            name=f"m{number}",
            rows_TF=torch.randn(rows, features, generator=generator).to(device),
            labels_TK=torch.randint(0, 2, (rows, columns), generator=generator).float().to(device),
            mean_F=torch.zeros(features, device=device),
            std_F=torch.ones(features, device=device),
            context_RC=context_RC if job.model.reads_context else None,
        )
        for number in range(count)
    ]


def places(job: Job) -> int:
    """Return the number of rows at which a member's window or chunk may start."""
    return max(CHUNK_PLACES, job.train.batch) if job.model.reads == CHUNKS else ROWS


def batches(members: Sequence[Member], job: Job, step: int) -> list[torch.Tensor]:
    """Return a batch of random windows, or chunks, for each model: of a member the same in every pack."""
    generator = torch.Generator().manual_seed(step)
    draws = [
        torch.randint(0, places(job), (job.train.batch,), generator=generator) * job.model.bars_out
        for _ in members
    ]
    return [starts_B.to(member.rows_TF.device) for starts_B, member in zip(draws, members, strict=True)]


def _steps(
    job: Job, members: Sequence[Member], seconds: float, *, fewest: int
) -> tuple[float, tuple[list[float], ...]]:
    """Return the median seconds of a step, and the losses of the first ones. The mean would include other
    load on the machine.
    """
    pack = form_pack(members, job)
    prepared = [batches(members, job, step) for step in range(COMPARED_STEPS)]
    on_gpu = members[0].rows_TF.device.type == "cuda"
    warm_up = EAGER_STEPS + 1 if on_gpu else 1  # caches, and the recording of a graph
    times, losses = list[float](), list[list[float]]()
    began = time.perf_counter()
    while len(times) < warm_up + fewest or time.perf_counter() - began < seconds:
        before = time.perf_counter()
        loss_M = pack.step([True] * len(members), prepared[len(times) % COMPARED_STEPS])
        losses.append(loss_M.tolist())  # waits for the device
        times.append(time.perf_counter() - before)
        if len(times) == warm_up:
            began = time.perf_counter()
    return statistics.median(times[warm_up:]), tuple(losses[:COMPARED_STEPS])


def _bytes_of(members: Sequence[Member]) -> int:
    parts = [(one.rows_TF, one.labels_TK, one.mean_F, one.std_F) for one in members]
    return sum(tensor.nbytes for tensors in parts for tensor in tensors)
