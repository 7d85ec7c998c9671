"""The learning rate by position."""

from __future__ import annotations

import pytest
import torch

from tests.jobs import job_of
from trainer.base.errors import UsageError
from trainer.job.job import Job
from trainer.train.schedule import base_rate, rate_factor


def test_the_rate_is_level_without_a_schedule():
    assert {rate_factor(Job(), step=step, steps=100) for step in range(100)} == {1.0}


def test_the_rate_rises_in_even_steps_and_reaches_its_value():
    rates = [rate_factor(job_of(warmup_steps=4), step=step, steps=100) for step in range(6)]
    assert rates == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_a_warm_up_in_epochs_is_that_many_steps():
    by_steps = job_of(warmup_steps=15, schedule="cosine", epochs=10)
    by_epochs = job_of(warmup_epochs=1.5, schedule="cosine", epochs=10)  # of 10 steps
    for step in range(100):
        assert rate_factor(by_epochs, step=step, steps=100) == rate_factor(by_steps, step=step, steps=100)
    with pytest.raises(UsageError, match="train.warmup_epochs"):
        job_of(warmup_epochs=1.0, warmup_steps=2)


def test_a_cosine_falls_from_the_end_of_the_warm_up_to_nothing():
    job = job_of(warmup_steps=10, schedule="cosine")
    rates = [rate_factor(job, step=step, steps=110) for step in range(10, 111)]
    assert rates[0] == 1.0 and rates[50] == pytest.approx(0.5) and rates[-1] == pytest.approx(0.0)
    assert rates == sorted(rates, reverse=True)


def test_a_warm_up_longer_than_the_training_never_ends():
    assert rate_factor(job_of(warmup_steps=200, schedule="cosine"), step=99, steps=100) == 0.5


def torchs_rates(warmup: int, steps: int, *, first: int, factor: int) -> list[float]:
    """Return the rates of torch's own schedulers, from a rate of one: linear, then cosines with warm
    restarts.
    """
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    rising = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=1 / warmup, total_iters=warmup - 1)
    falling = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=first, T_mult=factor)
    scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [rising, falling], milestones=[warmup])
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.filterwarnings("ignore:The epoch parameter:UserWarning")  # SequentialLR's own call
@pytest.mark.parametrize("factor", [1, 2])
def test_cosines_with_warm_restarts_are_torchs(factor):
    job = job_of(warmup_steps=7, schedule="cosine", epochs=10, restart_epochs=2, restart_factor=factor)
    ours = [rate_factor(job, step=step, steps=200) for step in range(200)]  # 20 steps an epoch
    assert ours == pytest.approx(torchs_rates(7, 200, first=40, factor=factor), abs=1e-12)
    assert ours.count(1.0) > 2  # it did begin again


def test_the_rate_grows_with_the_batch_as_the_job_says():
    rates = {
        scaling: base_rate(job_of(batch=1024, learning_rate=1e-3, rate_scaling=scaling))
        for scaling in ("none", "linear")
    }
    assert rates == {"none": 1e-3, "linear": pytest.approx(4e-3)}
    assert base_rate(
        job_of(batch=1024, learning_rate=1e-3, rate_scaling="sqrt", rate_batch=64)
    ) == pytest.approx(4e-3)


def test_restarts_need_a_cosine_schedule():
    with pytest.raises(UsageError, match="restart_epochs"):
        job_of(restart_epochs=2)
