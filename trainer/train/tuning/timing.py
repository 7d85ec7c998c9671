"""Time one candidate on this device: windows per second and memory, on rows of noise in the shape of real
ones.

Also owns the comparison of a strategy for GPUs with plain modules over ten steps. `trainer.train.tuning.tune`
lists the candidates and chooses one.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from trainer.base.settings import CHUNKS, CONTEXT, WINDOWS
from trainer.job.job import Job, job_from
from trainer.machines.memory import GIB
from trainer.train.packs.pack import Member, Pack
from trainer.train.packs.sequential import SequentialPack
from trainer.train.packs.strategy import form_pack
from trainer.train.precision import matmul_dtype

ROWS = 20_000  # of each model: enough to exceed the caches
CHUNK_PLACES = 64  # least number of chunks in the rows of a model that reads chunks
PREPARED = 4  # batches made before timing starts
CPU_READS = {WINDOWS: 256, CHUNKS: 1}  # per timed step on a CPU; at least a slice
FEWEST_STEPS = 2  # timed
GATE_STEPS = 10
OUT_OF_MEMORY = "out of memory"
# Texts of plain RuntimeErrors: torch's allocator on a CPU; the driver, for a graph or a kernel; NVIDIA's
# libraries.
_NO_MEMORY = ("can't allocate memory", "out of memory", "_STATUS_ALLOC_FAILED")


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """Settings to time: strategy, models at a time, windows or chunks per slice. `batch` is 0 unless the
    trial chooses it.
    """

    strategy: str
    pack: int
    micro_batch: int
    activation_checkpointing: bool = False
    batch: int = 0

    def of(self, job: Job) -> Job:
        """Return the job with this candidate's settings."""
        chosen = job.with_train(batch=self.batch or job.train.batch)
        return chosen.with_expert(
            strategy=self.strategy,
            pack=self.pack,
            micro_batch=self.micro_batch,
            activation_checkpointing=self.activation_checkpointing,
        )


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Speed and memory of a candidate, or the reason for excluding it."""

    candidate: Candidate
    windows_per_second: float = 0.0  # or chunks
    steps_per_second: float = 0.0
    memory_per_model_gib: float = 0.0
    excluded: str = ""


def measure(
    option: Candidate, members: Sequence[Member], job: Job, seconds: float, *, whole: bool = False
) -> Timing:
    """Train the members with this candidate for about `seconds`, at least two steps; return its timing.

    A candidate that runs out of memory is excluded. So is one with any other error of torch's, except plain
    modules, whose error is raised: no other would work. On a CPU a step takes only a few slices of the batch
    unless `whole`: slices cost the same, and the optimizer little.
    """
    cuda = members[0].rows_TF.device.type == "cuda"
    before, job = 0, option.of(job)
    reads = job.train.batch
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        # Without the rows of members of larger packs.
        before = peak_bytes(option.strategy, now=True) - _bytes_of(members)
    elif not whole:
        reads = min(reads, max(option.micro_batch, CPU_READS[job.model.reads]))
    try:
        step_seconds = _step_seconds(job.with_train(batch=reads), members, seconds)
    except RuntimeError as error:
        if option.strategy == "sequential" and not is_out_of_memory(error):
            raise
        return Timing(candidate=option, excluded=reason_of(error))
    memory = (peak_bytes(option.strategy) - before) / GIB if cuda else 0.0
    return Timing(
        candidate=option,
        windows_per_second=reads * len(members) / step_seconds,
        steps_per_second=reads / job.train.batch / step_seconds,
        memory_per_model_gib=memory / len(members),
    )


def peak_bytes(strategy: str, *, now: bool = False) -> int:
    """Return the most bytes of the GPU that a pack of this strategy took, or what it takes now.

    It is what torch allocated, but what it reserved for a recorded graph, which keeps the blocks of each
    stream: to the host, which records one model after another, only one model's are allocated.
    """
    if strategy == "sequential":
        return torch.cuda.memory_allocated() if now else torch.cuda.max_memory_allocated()
    return torch.cuda.memory_reserved() if now else torch.cuda.max_memory_reserved()


def warm_up(device: torch.device) -> None:
    """Take a few tiny steps, in the first of which torch loads libraries for two seconds."""
    job = job_from({"model": {"hidden": 1, "layers": 1, "lookback": 1}, "train": {"batch": 1}})
    measure(Candidate(strategy="sequential", pack=1, micro_batch=1), make_members(1, job, device), job, 0.0)


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


def disagreement(other: Pack, members: Sequence[Member], job: Job) -> str:
    """Train a fresh pack and plain modules of the same members for ten steps; return '' if their losses
    agree, else how they differ. The tolerance is 1e-3 in float32, 1e-2 in half precision.
    """
    allowed = 1e-3 if matmul_dtype(job, members[0].rows_TF.device) == torch.float32 else 1e-2
    plain = SequentialPack(members, job, micro_batch=job.train.batch)
    worst = 0.0
    for step in range(GATE_STEPS):
        starts = batches(members, job, step)
        expected, seen = (pack.step([True] * len(members), starts).double() for pack in (plain, other))
        worst = max(worst, float(((seen - expected) / expected).abs().nan_to_num(torch.inf).max()))
    if worst <= allowed:
        return ""
    return f"its losses differ by {worst:.1e} after {GATE_STEPS} steps, {allowed:.0e} is allowed"


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
    """Return a batch of random windows, or chunks, for each model."""
    generator = torch.Generator().manual_seed(step)
    draws = [
        torch.randint(0, places(job), (job.train.batch,), generator=generator) * job.model.bars_out
        for _ in members
    ]
    return [starts_B.to(member.rows_TF.device) for starts_B, member in zip(draws, members, strict=True)]


def _step_seconds(job: Job, members: Sequence[Member], seconds: float) -> float:
    """Return the median seconds of a step. The mean would include other load on the machine."""
    pack = form_pack(members, job)
    prepared = [batches(members, job, step) for step in range(PREPARED)]
    warm_up = 2 if members[0].rows_TF.device.type == "cuda" else 1  # caches, and the recording of a graph
    times: list[float] = []
    began = time.perf_counter()
    while len(times) < warm_up + FEWEST_STEPS or time.perf_counter() - began < seconds:
        before = time.perf_counter()
        pack.step([True] * len(members), prepared[len(times) % PREPARED]).sum().item()  # waits for the device
        times.append(time.perf_counter() - before)
        if len(times) == warm_up:
            began = time.perf_counter()
    return statistics.median(times[warm_up:])


def _bytes_of(members: Sequence[Member]) -> int:
    parts = [(one.rows_TF, one.labels_TK, one.mean_F, one.std_F) for one in members]
    return sum(tensor.nbytes for tensors in parts for tensor in tensors)
