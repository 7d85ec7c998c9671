"""What a worker has of the machine, and how its process is set up before its first step: cores, threads, memory.

The supervisor deals stations out; the worker settles in before it makes anything, as memory lies where it is first touched.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any

import torch

from trainer.config import Job
from trainer.gpu_profiles.memory import GIB, PROCESS_GIB
from trainer.train.affinity import allowed_cores, core_list, cores_near_gpu, cores_of_worker, stay_on
from trainer.train.cpu import keep_freed_memory

# Convolutions of this many channels gain from a second thread, narrower ones lose. AMD EPYC, 2 cores, torch 2.13, 2026-11-21,
# chunks/s with one thread and with two: 4 blocks of 32, chunks of 256 bars: 584 and 477; 8 of 128, chunks of 512: 35 and 55.
THREADED_WIDTH = 128
# For how many loops a thread of OpenMP (GNU's, which torch brings) waits awake for the others. Left alone they do so for long:
# on busy cores they keep each other from working. The same 8 blocks of 128 in chunks/s, idle cores and beside two busy
# processes: left alone 65 and 2.6, asleep at once (OMP_WAIT_POLICY=PASSIVE) 51 and 17, this 55 and 19; one thread 35 and 24.
SPIN_COUNT = 1000
_SPIN_VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


@dataclass(frozen=True, kw_only=True)
class Station:
    """One worker's share of the machine."""

    number: int
    device: str
    threads: int = 1
    sharing: int = 1  # workers on the same GPU, itself included


def threads_of(job: Job, *, num_tasks: int, num_workers: int, cores: int) -> int:
    """Return how many threads a CPU worker trains with.

    One, where there is a model for each core: then more would only wait for each other, and an LSTM loses in any case. A TCN
    with wide convolutions, where models are fewer than cores, gets its worker's share of the cores.
    """
    if job.model != "tcn" or job.width < THREADED_WIDTH or num_tasks >= cores:
        return 1
    return max(1, cores // num_workers)


def let_threads_sleep(environment: MutableMapping[str, str] = os.environ) -> None:
    """Set, for processes started from now on, how long idle threads wait awake, unless the user has said so."""
    if not any(name in environment for name in _SPIN_VARIABLES):
        environment["GOMP_SPINCOUNT"] = str(SPIN_COUNT)


def memory_fraction(sharing: int, memory_bytes: int) -> float:
    """Return what part of a GPU's memory torch may take in one of `sharing` processes: its share, less the CUDA context."""
    return max(0.01, 1 / sharing - PROCESS_GIB * GIB / memory_bytes)


def settle(station: Station) -> dict[str, Any]:
    """Set this process up for its station; return what was set, for an event, and nothing where all was left as it is."""
    torch.set_num_threads(station.threads)  # also those of threads that this one starts
    found: dict[str, Any] = {"threads": station.threads} if station.threads > 1 else {}
    allowed = allowed_cores()
    if station.device == "cpu":
        keep_freed_memory()
        cores = cores_of_worker(station.number, allowed)
        stay_on(cores)
    else:
        gpu = torch.cuda.get_device_properties(station.device)
        cores = cores_near_gpu(_pci_address(gpu), allowed)
        stay_on(cores)
        torch.cuda.set_device(station.device)
        if station.sharing > 1:
            fraction = memory_fraction(station.sharing, gpu.total_memory)
            torch.cuda.set_per_process_memory_fraction(fraction, station.device)
            found["memory_fraction"] = round(fraction, 4)
    if cores:
        found["cores"] = core_list(cores)
    return found


def _pci_address(gpu: Any) -> str:
    """Return a GPU's address as sysfs writes it; empty where torch does not tell (the stubs of 2.13 do not know the fields)."""
    if not all(hasattr(gpu, f"pci_{part}_id") for part in ("domain", "bus", "device")):
        return ""
    return f"{gpu.pci_domain_id:04x}:{gpu.pci_bus_id:02x}:{gpu.pci_device_id:02x}.0"
