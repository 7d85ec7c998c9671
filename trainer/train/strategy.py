"""Which strategy a worker trains its models with, and how many at a time: the job's word, else the device's default."""

from __future__ import annotations

from collections.abc import Sequence

from trainer.config import Job
from trainer.train.chunks import Chunks, cpu_micro_batch
from trainer.train.pack import CPU_MICRO_BATCH, Lanes, Member, Pack
from trainer.train.stacked import Fused, Streams

GPU_PLACES = 8


def places_of(job: Job, device: str) -> int:
    """Return how many models one worker trains together. On a CPU more than one gains nothing."""
    return job.pack or (1 if device == "cpu" or job.model == "tcn" else GPU_PLACES)


def form_pack(members: Sequence[Member], job: Job) -> Pack:
    """Make a pack of the job's strategy.

    `auto` is lanes, plain modules one after another, on every device: streams and fused have to agree with them on the chip at
    hand first, which `mayfly tune` finds out before it picks one.
    """
    on_cpu = members[0].rows_TF.device.type == "cpu"
    if job.model == "tcn":  # large enough to fill a device by itself
        return Chunks(members, job, micro_batch=job.micro_batch or (cpu_micro_batch(job) if on_cpu else job.batch))
    micro_batch = job.micro_batch or (CPU_MICRO_BATCH if on_cpu else job.batch)
    if job.strategy == "fused":
        return Fused(members, job, micro_batch=micro_batch)
    if job.strategy == "streams":
        return Streams(members, job, micro_batch=micro_batch)
    return Lanes(members, job, micro_batch=micro_batch)
