"""MFU, memory and dollars so far, computed from a training's rate for each progress event.

    MFU = reads a second x floating-point operations of a read / (devices x the chip's dense peak in the job's precision)

Operations are counted by the model's formula (`ModelSettings.flops`), without what activation checkpointing does again, as in
Chowdhery and others 2022, appendix B (https://arxiv.org/abs/2204.02311). A field is left out where nothing is known: no peak of
a CPU, no formula, no price at a desk.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from trainer.gpu_profiles.chips import GpuProfile
from trainer.gpu_profiles.memory import GIB
from trainer.job import Job
from trainer.train.machine_file import MachineFacts


@dataclass(frozen=True, kw_only=True)
class Meter:
    """Adds what follows from a progress event."""

    flops_per_read: float  # 0: not known
    peak_flops: float  # of the devices of one worker, or of all ranks; 0: not known
    usd_per_hour: float | None
    paid_seconds: float  # before the training began
    began: float  # by the clock
    clock: Callable[[], float] = time.monotonic

    @property
    def usd(self) -> float | None:
        """Return what the machine has cost by now, at its price on demand; None if there is no price."""
        if self.usd_per_hour is None:
            return None
        return self.usd_per_hour * (self.paid_seconds + self.clock() - self.began) / 3600

    def read(self, event: dict[str, Any]) -> dict[str, Any]:
        """Return a progress event with `mfu` and `usd` where they are known; any other event as it is."""
        if event["event"] != "progress":
            return event
        known: dict[str, Any] = {}
        if self.flops_per_read and self.peak_flops:
            known["mfu"] = round(event["rate"] * self.flops_per_read / self.peak_flops, 4)
        if (usd := self.usd) is not None:
            known["usd"] = round(usd, 4)
        return {**event, **known}


def meter_for(
    job: Job, profile: GpuProfile, dtype: torch.dtype, machine: MachineFacts, *, devices: float, clock: Callable[[], float]
) -> Meter:
    """Return the meter of a training that begins now; `devices` are those behind one progress event's rate."""
    peak = profile.peak_tflops.get("fp32" if dtype == torch.float32 else "bf16", 0.0)  # bf16's is fp16's if there is none
    return Meter(
        flops_per_read=job.model.flops(features=len(job.data.inputs), outputs=job.target.outputs),
        peak_flops=peak * 1e12 * devices,
        usd_per_hour=machine.usd_per_hour,
        paid_seconds=machine.paid_seconds,
        began=clock(),
        clock=clock,
    )


def with_memory(event: dict[str, Any], device: str) -> dict[str, Any]:
    """Return a progress event with the most memory that this process has held, in GiB; any other event as it is."""
    return {**event, "memory_gib": round(peak_memory_gib(device), 3)} if event["event"] == "progress" else event


def peak_memory_gib(device: str) -> float:
    """Return the most memory that torch has reserved on this process's GPU, or that the process has held on a CPU."""
    if device != "cpu":
        return float(torch.cuda.max_memory_reserved(device)) / GIB
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / GIB if sys.platform == "darwin" else most * 1024 / GIB  # KiB on Linux
