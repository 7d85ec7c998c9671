"""Learning rate of each step: warm-up, then constant or cosine. A pure function of the step."""

from __future__ import annotations

import math

from trainer.job import Job


def rate_factor(job: Job, *, step: int, steps: int) -> float:
    """Return the factor on the learning rate at step `step` (from 0) of `steps`.

    It rises in even steps to 1 over `warmup_steps`; `cosine` then falls from 1 to 0 at the last epoch's end
    (Loshchilov and Hutter 2017, equation 5, without restarts: https://arxiv.org/abs/1608.03983).
    """
    if step < job.train.warmup_steps:
        return (step + 1) / job.train.warmup_steps
    if job.train.schedule == "constant":
        return 1.0
    share = (step - job.train.warmup_steps) / max(1, steps - job.train.warmup_steps)
    return 0.5 * (1 + math.cos(math.pi * min(1.0, share)))
