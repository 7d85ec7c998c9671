"""Devices of this machine: CPU or GPUs, their profile, and the device of each worker."""

from __future__ import annotations

from dataclasses import replace

import torch

from trainer.base.errors import UsageError
from trainer.job.job import Job
from trainer.machines.chips import named_profile
from trainer.machines.choice import Choice, Device, choose, gpus_here, wished
from trainer.machines.memory import GIB
from trainer.train.cpu import num_cores


def device_kind(choice: str) -> str:
    """Return `cuda` or `cpu` for the user's choice; auto takes a GPU if there is one. Raises UsageError for a
    missing GPU.
    """
    available = torch.cuda.is_available()
    if choice == "cuda" and not available:
        raise UsageError(
            "--device cuda, but torch finds no GPU here",
            do="Take --device cpu, or check `nvidia-smi` and the torch build.",
        )
    return "cuda" if available and choice != "cpu" else "cpu"


def default_workers(kind: str) -> int:
    """Return the default number of workers: one per GPU, or per core."""
    return torch.cuda.device_count() if kind == "cuda" else num_cores()


def device_of(kind: str, worker: int) -> str:
    """Return the device of a worker; if there are more workers than GPUs, they share GPUs in turn."""
    return f"cuda:{worker % torch.cuda.device_count()}" if kind == "cuda" else "cpu"


def choose_device(job: Job, device: str) -> tuple[str, Choice]:
    """Return `cuda` or `cpu`, and its profile. `device` is the command line's: auto, cpu or cuda.

    Raises UsageError for a missing GPU, and for a profile that is unknown or does not fit this machine.
    """
    wish, _ = wished(job.machine.gpu_profile)
    kind = device_kind("cpu" if wish == "cpu" and device == "auto" else device)
    if kind == "cuda":
        # Every GPU gets the same number of workers, so the one with the least memory decides.
        smallest = min(gpus_here() or gpus_of_torch(), key=lambda gpu: gpu.free_gib)
        return kind, choose(job.machine.gpu_profile, smallest)
    if device == "cpu" and wish not in ("", "cpu"):
        # A rehearsal's node, or a training on the CPU by choice: the job's GPU profile does not apply.
        why = f"--device cpu: {named_profile(wish).name} is for a GPU"
        return kind, replace(choose("cpu", None), why=why)
    return kind, choose(job.machine.gpu_profile, None)


def gpus_of_torch() -> tuple[Device, ...]:
    """Return the GPUs that torch sees, where nvidia-smi is missing, as in some containers. Free memory is
    the total: torch has no context yet.
    """
    gpus = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return tuple(
        Device(
            name=gpu.name,
            memory_gib=gpu.total_memory / GIB,
            free_gib=gpu.total_memory / GIB,
            compute_capability=f"{gpu.major}.{gpu.minor}",
        )
        for gpu in gpus
    )
