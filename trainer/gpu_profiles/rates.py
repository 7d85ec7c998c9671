"""How fast a profile trains a job's models: its rate for the reference model, and what a window of theirs costs against that.

Rates are estimates until a tuner has measured that chip. Arithmetic; it knows no clock and no cloud.
"""

from __future__ import annotations

from trainer.config import Job
from trainer.gpu_profiles.chips import GpuProfile, named_profile
from trainer.gpu_profiles.memory import figures

REFERENCE_STEPS = 60 * 2  # bars x layers of the model that the profiles' rates are for
REFERENCE_HIDDEN = 64
REFERENCE_MFLOP = 20.8  # of a window of that model, forward and backward, 50 features
# A convolution's multiplications cost less than a recurrence's: measured at full size on an AMD EPYC core on 2026-11-21, and
# an estimate of the same day for GPUs, where the reference model waits for its own steps.
CONVOLUTION_CPU, CONVOLUTION_GPU = 0.2, 0.03


def visits_per_second(profile: GpuProfile, job: Job) -> float:
    """Return how many windows (of a tcn: bars) of the job's models one device trains in a second."""
    rate = figures(profile)["windows_per_second"].value or figures(named_profile("t4"))["windows_per_second"].value
    cpu, gpu = window_costs(job)
    return float(rate) / (cpu if profile.name == "cpu" else gpu)


def window_costs(job: Job) -> tuple[float, float]:
    """Return what a window (of a tcn: a bar) costs against the reference model's, on a CPU and on a GPU."""
    if job.model == "tcn":
        mflop = _tcn_mflop(job)
        return CONVOLUTION_CPU * mflop / REFERENCE_MFLOP, CONVOLUTION_GPU * mflop / REFERENCE_MFLOP
    # A GPU is bound by the number of dependent steps until the matrices are large; a CPU by the multiplications.
    steps = job.lookback * job.layers / REFERENCE_STEPS
    width = job.hidden / REFERENCE_HIDDEN
    return steps * width**1.5, steps * max(1.0, width / 4)


def _tcn_mflop(job: Job) -> float:
    """Return the million multiplications and additions, forward and backward, that one bar of a chunk takes in a TCN.

    A block computes the chunk and what the blocks after it look back on; 2 a weight forward, 4 backward.
    """
    reaches = [4 * dilation for dilation in job.dilations]
    bars = sum(1 + sum(reaches[block + 1 :]) / job.chunk for block in range(job.blocks))
    return bars * 2 * 3 * job.width**2 * 6 / 1e6
