"""Device memory of one model that several GPUs train together, and how it is laid on them: DDP, or FSDP2 where it must be.

Under DDP every GPU holds the whole model and its share of the batch; its gradients lie in buckets all the time, where one GPU
frees them as the optimizer takes them. Under FSDP2 every GPU holds its part of weights, gradients, moments and a checkpoint's
copies, one block at a time as a whole, and two copies without gradients: the best weights, and the model that evaluates. The
formula is `trainer.gpu_profiles.memory`'s. Standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from trainer.errors import UsageError
from trainer.gpu_profiles.chips import GpuProfile
from trainer.gpu_profiles.memory import CPU, GIB, Footprint, footprint, num_trained, num_weights, room_gib
from trainer.job import Job, with_settings
from trainer.settings import FLOAT

# NCCL's own buffers in one process: 4 MiB (NCCL_BUFFSIZE) a channel and connection, up to 32 channels, rings and trees; and
# its kernels. An estimate of 2026-11-22 by https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html, not measured.
NCCL_GIB = 0.5
GATHERED_BLOCKS = 2  # as a whole at once under FSDP2: the block that computes, and the next one, which is on its way


@dataclass(frozen=True, kw_only=True)
class Laid:
    """One model on `devices` GPUs: `sharded` (FSDP2) or whole on each (DDP), in slices of `micro_batch` windows or chunks."""

    devices: int
    sharded: bool
    micro_batch: int
    activation_checkpointing: bool
    memory_gib: float  # of one device

    @property
    def words(self) -> str:
        """Return how the model lies on the GPUs, in words."""
        way = "" if self.devices == 1 else "in parts by FSDP, " if self.sharded else "whole on each, "
        again = " with activation checkpointing" if self.activation_checkpointing else ""
        return f"{way}slices of {self.micro_batch:,}{again}"


def rank_footprint(
    job: Job, *, features: int, bars: int, windows: int, devices: int, sharded: bool, on_gpu: bool = True
) -> Footprint:
    """Return the footprint of one rank of a model on so many devices, in slices of `windows` windows or chunks.

    NCCL's buffers are in its workspace. With one device it is the plain footprint of a sequential pack.
    """
    alone = with_settings(job, strategy="sequential")
    if devices == 1:
        return footprint(alone, features=features, bars=bars, windows=windows, on_gpu=on_gpu)
    # All gradients are there throughout: DDP's buckets, as of a batch in several slices.
    part = footprint(with_settings(alone, batch=windows + 1), features=features, bars=bars, windows=windows, on_gpu=on_gpu)
    nccl = NCCL_GIB * GIB if on_gpu else 0.0
    if not sharded:
        return replace(part, workspace=part.workspace + nccl)
    weights = FLOAT * num_weights(job, features=features)
    count, block = job.model.block_weights
    blocks = FLOAT * count * block
    # The rest (embeddings, head) is gathered with its gradients from the first forward to the last backward.
    whole = 2 * max(0.0, weights - blocks) + FLOAT * block * (GATHERED_BLOCKS + 1)
    trained = FLOAT * num_trained(job, features=features)
    gradients = trained if job.model.counts_gradients else 0.0  # there the workspace of a step holds them, see `memory`
    share = 1 - 1 / devices
    return replace(
        part,
        weights=part.weights / devices,
        copies=2 * weights + (part.copies - weights) / devices,  # the best weights, and the model that evaluates, are wholes
        workspace=max(0.0, part.workspace - gradients * share) + whole + nccl,
    )


def lay(
    profile: GpuProfile, job: Job, *, devices: int, memory_gib: float, features: int, bars: int, tuned: Job | None = None
) -> Laid:
    """Choose how one model lies on GPUs with so much free memory each: whole on each if any slice fits, else in parts.

    The batch is the job's whatever is chosen; slices begin with those of a trial, `tuned`. Raises UsageError where not even
    one window (or chunk) a slice fits.
    """
    room, needed = room_gib(memory_gib), math.inf
    for sharded in (False, True) if devices > 1 else (False,):
        for candidate, windows in _candidates(job, tuned or job, devices):
            part = rank_footprint(
                candidate,
                features=features,
                bars=bars,
                windows=windows,
                devices=devices,
                sharded=sharded,
                on_gpu=profile.name != CPU,
            )
            if part.total / GIB <= room:
                return Laid(
                    devices=devices,
                    sharded=sharded,
                    micro_batch=windows,
                    activation_checkpointing=candidate.train.activation_checkpointing,
                    memory_gib=part.total / GIB,
                )
            needed = min(needed, part.total / GIB)
    millions = num_weights(job, features=features) / 1e6
    parts = f"on each of {devices} {profile.chip}, also in parts (FSDP)" if devices > 1 else f"on one {profile.chip}"
    raise UsageError(
        f"a model of {millions:.1f} M weights does not fit {parts}",
        why=f"it needs {needed:.1f} of {room:.1f} GiB by the memory formula, in its smallest slices",
        do="Take larger or more GPUs, a smaller model, or fewer bars.",
    )


def _candidates(job: Job, best: Job, devices: int) -> Iterator[tuple[Job, int]]:
    """Yield the job and slices of a rank's share of a batch: the best, then halves; the same with activation checkpointing."""
    share = math.ceil((job.train.batch or job.model.default_batch) / devices)
    again = with_settings(job, activation_checkpointing=True)
    if best.train.activation_checkpointing:
        job = again
    for candidate in dict.fromkeys((job, again) if job.model.recompute_pays else (job,)):
        windows = min(best.train.micro_batch or share, share)
        yield candidate, windows
        while not job.train.micro_batch and job.model.may_slice and windows > 1:
            windows = (windows + 1) // 2
            yield candidate, windows
