"""Divide the machine among workers and set up a worker's process: cores, threads, memory.

The supervisor assigns stations. A worker sets up its process before it allocates, since memory is placed on
the NUMA node that touches it first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch

from trainer.base import environment
from trainer.job.job import Job
from trainer.job.pieces.piece import Piece
from trainer.machines.kernels import gains_from_threads
from trainer.machines.memory import GIB, PROCESS_GIB
from trainer.train.cpu import keep_freed_memory, use_one_thread
from trainer.train.workers.affinity import allowed_cores, core_list, cores_near_gpu, cores_of_worker, stay_on

# Spins of an idle OpenMP thread (GNU's, which torch bundles) before it sleeps. The default is long, so that
# on busy cores threads keep each other from working. Chunks/s of convolutions, 8 blocks of 128, on idle cores
# and beside two busy processes (AMD EPYC, 2026-11-21): default 65 and 2.6, no spinning
# (OMP_WAIT_POLICY=PASSIVE) 51 and 17, this 55 and 19; one thread 35 and 24.
SPIN_COUNT = 1000


@dataclass(frozen=True, kw_only=True)
class Station:
    """One worker's share of the machine."""

    number: int
    device: str
    sharing: int = 1  # workers on the same GPU, itself included
    helpers: tuple[Connection, ...] = ()  # lines to its helpers
    cores: int = 1  # its share of the machine's


def threads_of(job: Job, pieces: Sequence[Piece], *, num_workers: int, cores: int) -> dict[str, int]:
    """Return how many threads each model, by name, trains with on a CPU.

    As many as `expert.threads` says. Without it, with at least one model per core: one. With fewer models
    than cores, each gets its worker's share of the cores; so do the shortest models left over at the end. The
    number depends only on the job and the machine, never on the clock: sums over another number of threads
    may round differently.
    """
    threads = {piece.name: job.expert.threads or 1 for piece in pieces}
    if job.expert.threads:
        return threads
    if not gains_from_threads(job.cost) or job.expert.pack > 1:
        return threads
    if trials := sum(piece.trial > 0 for piece in pieces):  # the best one trains again, with as many
        return dict.fromkeys(threads, 1 if trials >= cores else max(1, cores // num_workers))
    if len(pieces) < cores:
        return dict.fromkeys(threads, max(1, cores // num_workers))
    left = len(pieces) % cores if num_workers == cores else 0
    for piece in sorted(pieces, key=lambda piece: (piece.estimate, piece.name))[:left]:
        threads[piece.name] = cores // left
    return threads


def let_threads_sleep() -> None:
    """Let idle OpenMP threads of processes started from now on sleep early, unless the user has set how they
    wait.
    """
    environment.set_spin_count(SPIN_COUNT)


def memory_fraction(sharing: int, memory_bytes: int) -> float:
    """Return the fraction of a GPU's memory that torch may use in one of `sharing` processes: its share less
    a CUDA context.
    """
    return max(0.01, 1 / sharing - PROCESS_GIB * GIB / memory_bytes)


def set_up_process(station: Station) -> dict[str, Any]:
    """Set up this process for its station; return its `cores` and `memory_fraction`, for an event, if they
    were set.
    """
    use_one_thread()  # until a model gets more
    taken: dict[str, Any] = {}
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
            taken["memory_fraction"] = round(fraction, 4)
    if cores:
        taken["cores"] = core_list(cores)
    return taken


def _pci_address(gpu: Any) -> str:
    """Return a GPU's PCI address as sysfs writes it; empty if torch does not report it (type stubs of 2.13
    lack the fields).
    """
    if not all(hasattr(gpu, f"pci_{part}_id") for part in ("domain", "bus", "device")):
        return ""
    return f"{gpu.pci_domain_id:04x}:{gpu.pci_bus_id:02x}:{gpu.pci_device_id:02x}.0"
