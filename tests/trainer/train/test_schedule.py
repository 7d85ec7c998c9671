"""The learning rate by position."""

from __future__ import annotations

import pytest

from trainer.job import Job, job_of
from trainer.train.schedule import rate_factor


def test_the_rate_is_level_without_a_schedule():
    assert {rate_factor(Job(), step=step, steps=100) for step in range(100)} == {1.0}


def test_the_rate_rises_in_even_steps_and_reaches_its_value():
    rates = [rate_factor(job_of(warmup_steps=4), step=step, steps=100) for step in range(6)]
    assert rates == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_a_cosine_falls_from_the_end_of_the_warm_up_to_nothing():
    job = job_of(warmup_steps=10, schedule="cosine")
    rates = [rate_factor(job, step=step, steps=110) for step in range(10, 111)]
    assert rates[0] == 1.0 and rates[50] == pytest.approx(0.5) and rates[-1] == pytest.approx(0.0)
    assert rates == sorted(rates, reverse=True)


def test_a_warm_up_longer_than_the_training_never_ends():
    assert rate_factor(job_of(warmup_steps=200, schedule="cosine"), step=99, steps=100) == 0.5
