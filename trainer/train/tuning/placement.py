"""Which profile a training runs under, and what follows: the device, and how many models a GPU trains at a time.

It changes the speed, not the model. On a CPU nothing follows: a worker is one core and trains model after model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from trainer.data.features import FEATURES
from trainer.gpu_profiles.chips import named_profile
from trainer.gpu_profiles.choice import Choice, Device, choose, gpus_here, wished
from trainer.gpu_profiles.memory import GIB, fit
from trainer.job import Job, with_settings
from trainer.train.workers.devices import device_kind


def choose_device(job: Job, device: str) -> tuple[str, Choice]:
    """Return `cuda` or `cpu`, and the profile that holds there. `device` is the command line's: auto, cpu or cuda.

    Raises UsageError for a missing GPU, and for a profile that is unknown or does not fit this machine.
    """
    wish, _ = wished(job.machine.gpu_profile)
    kind = device_kind("cpu" if wish == "cpu" and device == "auto" else device)
    if kind == "cuda":
        # Workers are placed alike on every GPU: the one with the least room decides.
        return kind, choose(job.machine.gpu_profile, min(gpus_here() or gpus_of_torch(), key=lambda gpu: gpu.free_gib))
    if device == "cpu" and wish not in ("", "cpu"):
        # A rehearsal's node, or somebody who wants the CPU this time: the job's profile waits for its GPU.
        why = f"--device cpu: {named_profile(wish).name} is for a GPU"
        return kind, replace(choose("cpu", None), why=why)
    return kind, choose(job.machine.gpu_profile, None)


def placed(
    job: Job,
    choice: Choice,
    *,
    tuned: Job,
    workers_per_gpu: int,
    symbols: Mapping[str, Mapping[str, Any]],
    measured_gib: float = 0.0,
) -> Job:
    """Return the tuned job as it fits one GPU of this profile: `pack`, `micro_batch` and activation checkpointing.

    What `job` itself names stands. `symbols` is the survey's summary of each, `measured_gib` what a tuner saw one model take.
    Where nothing was measured the memory formula decides. Raises UsageError where one model is too large.
    """
    found = fit(
        choice.profile,
        job,
        memory_gib=choice.memory_gib / workers_per_gpu,
        features=len(FEATURES),
        bars=max(int(summary["bars"]) for summary in symbols.values()),
        tuned=tuned,
        measured_gib=measured_gib,
    )
    batch = job.train.batch
    return with_settings(
        tuned,
        pack=found.models,
        micro_batch=found.micro_batch if found.micro_batch < batch else tuned.train.micro_batch,
        activation_checkpointing=found.activation_checkpointing,
    )


def gpus_of_torch() -> tuple[Device, ...]:
    """Ask torch where there is no nvidia-smi (AMD has another tool). Without a context it does not tell what is free."""
    found = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return tuple(
        Device(
            name=gpu.name,
            memory_gib=gpu.total_memory / GIB,
            free_gib=gpu.total_memory / GIB,
            compute_capability=f"{gpu.major}.{gpu.minor}",
        )
        for gpu in found
    )
