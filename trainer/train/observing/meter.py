"""MFU, memory and dollars so far, computed from a training's rate for each progress event; and the steps that
are computed twice.

    MFU = windows or chunks per second x FLOPs of one
          / (devices x the chip's dense peak in the job's precision)

FLOPs are counted by the model's formula (`ModelCost.flops`), without recomputation by activation
checkpointing, as in Chowdhery and others 2022, appendix B (https://arxiv.org/abs/2204.02311). Unknown fields
are left out: a CPU has no peak, a user's own model may have no formula, a desk has no price.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from trainer.job.job import Job
from trainer.machines.chips import GpuProfile
from trainer.machines.memory import GIB
from trainer.train.machine_file import MachineFacts


@dataclass(frozen=True, kw_only=True)
class Meter:
    """Adds MFU and cost to progress events."""

    flops_per_read: float  # of a window or chunk; 0: unknown
    peak_flops: float  # per second, of one worker's devices or of all ranks'; 0: unknown
    usd_per_hour: float | None
    paid_seconds: float  # before training began
    began: float  # by the clock
    clock: Callable[[], float] = time.monotonic

    @property
    def seconds(self) -> float:
        """Return the seconds of the machine that were paid for until now."""
        return self.paid_seconds + self.clock() - self.began

    @property
    def usd(self) -> float | None:
        """Return the cost of the machine until now at the price of its launch; None without a price."""
        if self.usd_per_hour is None:
            return None
        return self.usd_per_hour * self.seconds / 3600

    def read(self, event: dict[str, Any]) -> dict[str, Any]:
        """Return a progress event with `mfu` and `usd`, if known; any other event unchanged."""
        if event["event"] != "progress":
            return event
        known: dict[str, Any] = {}
        if self.flops_per_read and self.peak_flops:
            known["mfu"] = round(event["rate"] * self.flops_per_read / self.peak_flops, 4)
        if (usd := self.usd) is not None:
            known["usd"] = round(usd, 4)
        return {**event, **known}


class Repeats:
    """Adds to the event with which a model begins again how many of its steps are computed twice."""

    def __init__(self) -> None:
        self._reached: dict[str, int] = {}  # by model: the steps after which it was last heard of
        self._saved: set[str] = set()  # models that had a checkpoint

    def read(self, event: dict[str, Any]) -> dict[str, Any]:
        """Return `resumed`, or `model_started` of a model that had no checkpoint, with `lost_steps`: those
        since then that this training has seen; None if another machine took them. Any other is unchanged.
        """
        kind, model = event["event"], str(event.get("model", ""))
        if kind == "progress":
            self._reached[model] = (event["epoch"] - 1) * event["steps"] + event["step"]
        elif kind == "checkpoint":
            self._saved.add(model)
        elif kind == "resumed":
            reached = self._reached.get(model)
            lost = None if reached is None else max(0, reached - event["step"])
            self._reached[model] = event["step"]
            return {**event, "lost_steps": lost}
        elif kind == "model_started" and model in self._reached and model not in self._saved:
            return {**event, "lost_steps": self._reached.pop(model)}
        return event


def meter_for(
    job: Job,
    profile: GpuProfile,
    dtype: torch.dtype,
    machine: MachineFacts,
    *,
    devices: float,
    clock: Callable[[], float],
) -> Meter:
    """Return the meter of a training that begins now; `devices`: how many contribute to one progress event's
    rate.
    """
    # Profiles of chips without bf16 have fp16's peak under bf16.
    peak = profile.peak_tflops.get("fp32" if dtype == torch.float32 else "bf16", 0.0)
    return Meter(
        flops_per_read=job.cost.flops,
        peak_flops=peak * 1e12 * devices,
        usd_per_hour=machine.usd_per_hour,
        paid_seconds=machine.paid_seconds,
        began=clock(),
        clock=clock,
    )


def with_memory(event: dict[str, Any], device: str) -> dict[str, Any]:
    """Return a progress event with this process's peak memory in GiB; any other event unchanged."""
    if event["event"] != "progress":
        return event
    return {**event, "memory_gib": round(peak_memory_gib(device), 3)}


def peak_memory_gib(device: str) -> float:
    """Return the peak memory that torch reserved on this process's GPU, or on a CPU the process's peak
    memory.
    """
    if device != "cpu":
        return float(torch.cuda.max_memory_reserved(device)) / GIB
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / GIB if sys.platform == "darwin" else most * 1024 / GIB  # KiB on Linux
