"""The rate at which one device of a profile (on a CPU: one core) trains a job's models, an estimate: the rate
of the reference model, divided by the relative cost of the job's windows.

What runs of a job took instead is in `trainer.runs.calibration`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainer.base.settings import ATTENTION, CONVOLUTION
from trainer.job.job import Job
from trainer.machines.chips import GpuProfile, named_profile, packaged
from trainer.machines.kernels import PACK, window_costs
from trainer.machines.memory import CPU, is_half, rate_figure

NOT_ESTIMATED = "not estimated"  # of a user's own model before its trial
# An estimate by the constants below, for a chip of the kind that gave them and models of their kernels.
ELSEWHERE, ELSEWHERE_ON = "measured elsewhere", ("h200", (ATTENTION, CONVOLUTION))
EARLIER_RUN = "its run of"  # basis of a script's rate, with the date
# Share of the data sheet's peak that a model which counts its FLOPs reaches on an H200 (docs/benchmarks.md,
# 2026-11-27): a transformer of 151 M weights with 1,024 windows, uncompiled (compiled: 0.40), and a TCN of
# 18 M with 64 chunks. An estimate for every other model and chip.
MFU = {ATTENTION: 0.25, CONVOLUTION: 0.19}
# Least seconds of its step, recorded as a graph: the transformer with 64 windows. An estimate for every other
# model, chip and host.
STEP_SECONDS = 0.008
HALF_OVER_FULL = 4.0  # peak in bf16 over peak in fp32 if the profile has none in bf16: L4's and L40S's ratio
# Kernels of an agent's rollout besides its networks', of a bar of it and of an optimizer step, counted with
# an MLP (torch 2.13, 2026-11-27), and the least seconds of one in a recorded graph, an estimate: all agents
# of a pack share them.
KERNELS_OF_A_ROLLOUT, KERNELS_OF_A_BAR, KERNELS_OF_A_STEP, KERNEL_SECONDS = 216, 2, 135, 3e-6
TORCH = "2.13"  # of instances, up to the minor version; a test compares it with the node's


@dataclass(frozen=True, kw_only=True)
class Rate:
    """Windows of the job's models (or bars of chunks) that one device trains per second.

    `basis` is `estimate`, `yours` (by the user's figure of the profile), `measured elsewhere`,
    `not estimated`, or the earlier run of a script.
    """

    per_second: float
    basis: str
    busy: float = 1.0  # share of the time in which a GPU computes, by the formula

    @property
    def is_estimate(self) -> bool:
        """Return whether the rate is an estimate."""
        return self.basis in ("estimate", ELSEWHERE, NOT_ESTIMATED)

    @property
    def has_run(self) -> bool:
        """Return whether a run measured it, of this script."""
        return self.basis.startswith(EARLIER_RUN)

    @property
    def source(self) -> str:
        """Return where the rate is from: measured here (by a run), measured elsewhere (on another chip of
        this kind), yours, formula, or not estimated.
        """
        if self.is_estimate:
            return "formula" if self.basis == "estimate" else self.basis
        return "yours" if self.basis == "yours" else "measured here"

    def to_dict(self) -> dict[str, Any]:
        """Return it as a plan's JSON has it."""
        return {
            "per_gpu_and_second": round(self.per_second, 1),
            "basis": self.basis,
            "source": self.source,
        }


def rate_of(profile: GpuProfile, job: Job, *, models: int = 1) -> Rate:
    """Return the rate of one device for the job's models: an estimate by the profile's figure. `models`: that
    it has to train; agents of a GPU wait for its launches together.
    """
    estimate, basis, busy = visits_per_second(profile, job), rate_figure(profile).basis, 1.0
    if job.target.acts and profile.name != CPU:
        together = min(models, job.expert.pack or (PACK if job.model.has_stacked_form else 1))
        computes, waits = 1 / estimate, _waiting_seconds(job) / max(1, together)
        estimate, busy = 1 / max(computes, waits), computes / max(computes, waits)
    if not job.cost.is_measured:
        return Rate(per_second=estimate, basis=NOT_ESTIMATED)
    chip, kernels = ELSEWHERE_ON
    is_known = basis == "estimate" and profile.name == chip and job.cost.kernel in kernels
    return Rate(per_second=estimate, basis=ELSEWHERE if is_known else basis, busy=busy)


def _waiting_seconds(job: Job) -> float:
    """Return the least seconds of a window of a pack of agents on a GPU, however many they are."""
    bars = job.reads_of_step / job.agent.lanes
    kernels = KERNELS_OF_A_ROLLOUT + KERNELS_OF_A_BAR * bars + KERNELS_OF_A_STEP * job.updates_of_step
    return kernels * KERNEL_SECONDS / (job.reads_of_step * job.cost_of_read)


def visits_per_second(profile: GpuProfile, job: Job) -> float:
    """Return how many windows (or bars of chunks) of the job's models one device trains per second.

    On a GPU a model that counts its FLOPs is bound by the chip's peak and by the launches of a step, others
    by their cost relative to the reference model's.
    """
    rate, cost = reference_rate(profile), job.cost
    cpu, gpu = window_costs(cost)
    if profile.name == CPU:
        return rate / cpu
    if not cost.flops:
        return rate / gpu
    by_peak = MFU[cost.kernel] * peak_flops(profile, half=is_half(job, on_gpu=True)) / cost.flops
    batch = job.train.batch or job.model.default_batch
    return min(by_peak, batch / STEP_SECONDS) * job.model.bars_out


def reference_rate(profile: GpuProfile) -> float:
    """Return the windows per second of the reference model on one device; an unknown chip counts as a T4."""
    known = rate_figure(profile).value
    return float(known or rate_figure(named_profile("t4")).value)


def peak_flops(profile: GpuProfile, *, half: bool) -> float:
    """Return the chip's peak in FLOP/s; that of a T4 if unknown."""
    known = profile.peak_tflops if "fp32" in profile.peak_tflops else packaged()["t4"].peak_tflops
    return float(known.get("bf16", HALF_OVER_FULL * known["fp32"]) if half else known["fp32"]) * 1e12
