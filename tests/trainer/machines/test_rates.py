from __future__ import annotations

from dataclasses import replace

import pytest

from tests.jobs import job_of
from trainer.base.settings import ATTENTION
from trainer.job.job import Job
from trainer.machines.chips import named_profile
from trainer.machines.rates import MFU, TORCH, Rate, peak_flops, rate_of, visits_per_second
from trainer.node.devices import TORCH as NODE_TORCH


def test_the_reference_model_has_the_profiles_rate():
    cpu, l4 = named_profile("cpu"), named_profile("l4")
    assert visits_per_second(cpu, Job()) == pytest.approx(2_000)
    assert visits_per_second(cpu, job_of(hidden=256)) == pytest.approx(2_000 / 8)
    assert visits_per_second(l4, job_of(lookback=120)) == pytest.approx(visits_per_second(l4, Job()) / 2)


def test_a_large_models_rate_is_limited_by_the_chips_peak():
    t4, h100 = named_profile("t4"), named_profile("h100")
    large = job_of(model="transformer", preset="large")
    flops = large.cost.flops
    assert visits_per_second(h100, large) <= MFU[ATTENTION] * 989.4e12 / flops
    assert visits_per_second(t4, large) == pytest.approx(MFU[ATTENTION] * 65e12 / flops)
    full = job_of(model="transformer", preset="large", precision="fp32")
    assert visits_per_second(t4, full) == pytest.approx(MFU[ATTENTION] * 8.1e12 / flops)
    assert peak_flops(named_profile("a10g"), half=True) == 65e12, "an unknown peak is a T4's"
    assert peak_flops(named_profile("rtx_pro_6000"), half=True) > 4 * 100e12


def test_a_tcns_rate_is_in_bars():
    small, large = (
        visits_per_second(named_profile("cpu"), job_of(model="tcn", chunk=chunk)) for chunk in (1024, 4096)
    )
    assert small == pytest.approx(1_100, rel=0.1)  # as measured at full size: docs/benchmarks.md
    assert small < large < 2 * small  # the receptive field is read again for each chunk


def test_the_users_figure_overrides_the_estimate():
    mine = replace(named_profile("l4"), yours={"windows_per_second": 70_000})
    assert rate_of(mine, Job()) == Rate(per_second=70_000.0, basis="yours")
    assert rate_of(named_profile("l4"), Job()) == Rate(per_second=150_000.0, basis="estimate")


def test_instances_train_with_the_torch_that_rates_are_for():
    assert TORCH == NODE_TORCH


def test_agents_of_a_gpu_wait_for_its_launches_together():
    h100, job = named_profile("h100"), job_of(**{"target.name": "position", "model.name": "mlp"})
    one, eight, more = (rate_of(h100, job, models=models) for models in (1, 8, 20))
    assert one.per_second < eight.per_second == more.per_second  # a pack has eight
    assert one.busy < eight.busy <= 1
    assert eight.per_second == pytest.approx(visits_per_second(h100, job) * eight.busy)
    rows = 1024 * (1 + 3 * 4) / 3  # of a rollout, in windows of supervised training
    assert one.per_second == pytest.approx(rows / ((216 + 2 * 64 + 135 * 16) * 3e-6))
    assert rate_of(named_profile("cpu"), job).busy == 1
