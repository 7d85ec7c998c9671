"""Device memory of one model that several GPUs train together, and the choice of DDP or, if necessary, FSDP2.

Under DDP every GPU holds the whole model and its share of the batch. Gradients stay in buckets all the time,
while a single GPU frees them after the optimizer's step. Under FSDP2 every GPU holds its part of weights,
gradients, moments and a checkpoint's copies, one whole block at a time, and two whole copies without
gradients: the best weights, and the model for evaluation. The formula is that of
`trainer.machines.memory`. Standard library only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from trainer.base.errors import UsageError
from trainer.base.settings import FLOAT, HALF
from trainer.job.job import Job
from trainer.machines.chips import GpuProfile
from trainer.machines.memory import CPU, GIB, Footprint, footprint, is_half, room_gib, slices_to_try

# NCCL's buffers in one process: 4 MiB (NCCL_BUFFSIZE) per channel and connection, up to 32 channels, rings
# and trees; and its kernels. An estimate of 2026-11-22 by
# https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html, not measured.
NCCL_GIB = 0.5
# Whole blocks at once under FSDP2: the one that computes, and the next, which is being gathered.
GATHERED_BLOCKS = 2


@dataclass(frozen=True, kw_only=True)
class Placement:
    """One model on `devices` GPUs: `sharded` (FSDP2) or whole on each (DDP), in slices of `micro_batch`
    windows or chunks.
    """

    devices: int
    sharded: bool
    micro_batch: int
    activation_checkpointing: bool
    memory_gib: float  # of one device

    @property
    def words(self) -> str:
        """Return the placement as text, such as `whole on each, slices of 256`."""
        place = "" if self.devices == 1 else "in parts by FSDP, " if self.sharded else "whole on each, "
        again = " with activation checkpointing" if self.activation_checkpointing else ""
        return f"{place}slices of {self.micro_batch:,}{again}"


def rank_footprint(
    job: Job, *, features: int, bars: int, windows: int, devices: int, sharded: bool, on_gpu: bool
) -> Footprint:
    """Return the footprint of one of `devices` ranks that train a model, in slices of `windows` windows or
    chunks.

    `workspace` includes NCCL's buffers. With one device it is the plain footprint of a sequential pack.
    """
    alone = job.with_expert(strategy="sequential")
    if devices == 1:
        return footprint(alone, features=features, bars=bars, windows=windows, on_gpu=on_gpu)
    # All gradients exist throughout, in DDP's buckets, as with a batch in several slices.
    part = footprint(
        alone.with_train(batch=windows + 1), features=features, bars=bars, windows=windows, on_gpu=on_gpu
    )
    nccl = NCCL_GIB * GIB if on_gpu else 0.0
    if not sharded:
        return replace(part, workspace=part.workspace + nccl)
    cost = job.model.cost(features=features, outputs=job.target.outputs)
    weights, block = FLOAT * cost.weights, cost.block_weights
    blocks = FLOAT * cost.blocks * block
    # The rest (embeddings, head) stays gathered, with its gradients, from the first forward to the last
    # backward. Weights are gathered in the type of matrix products.
    gathered = HALF / FLOAT if is_half(job, on_gpu=on_gpu) else 1.0
    whole = (gathered + 1) * max(0.0, weights - blocks) + FLOAT * block * (gathered * GATHERED_BLOCKS + 1)
    gradients = FLOAT * cost.trained if cost.counts_gradients else 0.0  # then they are part of the workspace
    share = 1 - 1 / devices
    return replace(
        part,
        weights=part.weights / devices,
        copies=2 * weights
        + (part.copies - weights) / devices,  # whole: the best weights, and the model for evaluation
        workspace=max(0.0, part.workspace - gradients * share) + whole + nccl,
    )


def place_on_gpus(
    profile: GpuProfile,
    job: Job,
    *,
    devices: int,
    memory_gib: float,
    features: int,
    bars: int,
    tuned: Job | None = None,
) -> Placement:
    """Choose how to place one model on GPUs with `memory_gib` free each: whole on each if any slice fits,
    else in parts.

    The batch is always the job's; slices start with those of a trial, `tuned`. Raises UsageError if not even
    slices of one window (or chunk) fit.
    """
    room, needed, best = room_gib(memory_gib), math.inf, tuned or job
    share = math.ceil((job.train.batch or job.model.default_batch) / devices)
    first = job.with_expert(activation_checkpointing=True) if best.expert.activation_checkpointing else job
    for sharded in (False, True) if devices > 1 else (False,):
        for candidate, windows in slices_to_try(job, first, whole=share, start=best.expert.micro_batch):
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
                return Placement(
                    devices=devices,
                    sharded=sharded,
                    micro_batch=windows,
                    activation_checkpointing=candidate.expert.activation_checkpointing,
                    memory_gib=part.total / GIB,
                )
            needed = min(needed, part.total / GIB)
    millions = job.model.cost(features=features, outputs=job.target.outputs).weights / 1e6
    parts = f"on one {profile.chip}"
    if devices > 1:
        parts = f"on each of {devices} {profile.chip}, also in parts (FSDP)"
    raise UsageError(
        f"a model of {millions:.1f} M weights does not fit {parts}",
        why=f"it needs {needed:.1f} of {room:.1f} GiB by the memory formula, in its smallest slices",
        do="Take larger or more GPUs, a smaller model, or fewer bars.",
    )
