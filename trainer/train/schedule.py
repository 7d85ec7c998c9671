"""Learning rate of each step: scaled by the batch, warmed up, then constant or cosine, with restarts. Pure
functions.
"""

from __future__ import annotations

import math

from trainer.job.job import Job


def base_rate(job: Job) -> float:
    """Return the learning rate for the job's batch.

    `linear` scales it by batch / rate_batch (Goyal and others 2017, https://arxiv.org/abs/1706.02677), `sqrt`
    by the root of that, which is the rule for Adam (Malladi and others 2022,
    https://arxiv.org/abs/2205.10287).
    """
    times = job.train.batch / job.expert.rate_batch
    power = {"none": 0.0, "linear": 1.0, "sqrt": 0.5}[job.train.rate_scaling]
    return float(job.train.learning_rate * times**power)


def rate_factor(job: Job, *, step: int, steps: int) -> float:
    """Return the factor on the learning rate at step `step` (from 0) of `steps`.

    It rises linearly to 1 over the warm-up; `cosine` then falls from 1 to 0 at the end of the last epoch.
    With `restart_epochs` it falls to 0 over that many epochs and restarts, each time over `restart_factor`
    times as many (Loshchilov and Hutter 2017, equation 5: https://arxiv.org/abs/1608.03983).
    """
    warmup = job.train.warmup_steps or round(job.train.warmup_epochs * steps / job.train.epochs)
    if step < warmup:
        return (step + 1) / warmup
    if job.train.schedule == "constant":
        return 1.0
    position, length = step - warmup, max(1, steps - warmup)
    if job.expert.restart_epochs:
        length = max(1, job.expert.restart_epochs * steps // job.train.epochs)
        while position >= length:
            position, length = position - length, length * job.expert.restart_factor
    return 0.5 * (1 + math.cos(math.pi * min(1.0, position / length)))
