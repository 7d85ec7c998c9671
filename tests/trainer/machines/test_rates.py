from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.jobs import job_of
from tests.trainer.machines.test_measurements import ENTRY as STORED
from trainer.job.job import Job
from trainer.machines.chips import named_profile
from trainer.machines.measurements import from_bytes, shape_of
from trainer.machines.rates import MFU, TORCH, Rate, peak_flops, rate_of, visits_per_second
from trainer.node.devices import TORCH as NODE_TORCH

ENTRY = {**STORED, "pack": 16, "windows_per_second": 900_000.0, "torch": "2.13.0+cu130", "date": "2026-11-20"}


def test_the_reference_model_has_the_profiles_rate():
    cpu, l4 = named_profile("cpu"), named_profile("l4")
    assert visits_per_second(cpu, Job()) == pytest.approx(2_000)
    assert visits_per_second(cpu, job_of(hidden=256)) == pytest.approx(2_000 / 8)
    assert visits_per_second(l4, job_of(lookback=120)) == pytest.approx(visits_per_second(l4, Job()) / 2)


def test_a_large_models_rate_is_limited_by_the_chips_peak():
    t4, h100 = named_profile("t4"), named_profile("h100")
    large = job_of(model="transformer", preset="large")
    flops = large.cost.flops
    assert visits_per_second(h100, large) <= MFU * 989.4e12 / flops
    assert visits_per_second(t4, large) == pytest.approx(MFU * 65e12 / flops)
    full = job_of(model="transformer", preset="large", precision="fp32")
    assert visits_per_second(t4, full) == pytest.approx(MFU * 8.1e12 / flops)
    assert peak_flops(named_profile("a10g"), half=True) == 65e12, "an unknown peak is a T4's"
    assert peak_flops(named_profile("rtx_pro_6000"), half=True) > 4 * 100e12


def test_a_tcns_rate_is_in_bars():
    small, large = (
        visits_per_second(named_profile("cpu"), job_of(model="tcn", chunk=chunk)) for chunk in (1024, 4096)
    )
    assert small == pytest.approx(1_100, rel=0.1)  # as measured at full size: docs/benchmarks.md
    assert small < large < 2 * small  # the receptive field is read again for each chunk


def test_a_measured_rate_of_this_shape_overrides_the_estimate():
    l4 = named_profile("l4")
    assert rate_of(l4, Job(), ENTRY) == Rate(
        per_second=900_000.0, basis="measured on 2026-11-20", models=16, profiles=150_000.0
    )
    assert rate_of(l4, Job()) == Rate(per_second=150_000.0, basis="estimate")
    sequential = rate_of(l4, Job(), {**ENTRY, "strategy": "sequential", "pack": 8})
    assert sequential.models == 1, "models train in turn: one model alone is as fast"


def test_a_tcn_was_measured_in_chunks_and_is_planned_in_bars():
    job = job_of(model="tcn", chunk=1024)
    entry = {**ENTRY, "strategy": "sequential", "pack": 1, "windows_per_second": 300.0}
    assert rate_of(named_profile("l4"), job, entry).per_second == 300.0 * 1024


def test_a_pack_that_is_not_full_takes_as_long_per_step():
    rate = Rate(per_second=900_000.0, basis="", models=16)
    assert [rate.with_models(count) for count in (4, 16, 100)] == [225_000.0, 900_000.0, 900_000.0]


def test_the_users_figure_overrides_the_measured_rate():
    mine = replace(named_profile("l4"), yours={"windows_per_second": 70_000})
    assert rate_of(mine, Job(), ENTRY) == Rate(per_second=70_000.0, basis="yours")


@pytest.mark.parametrize(
    "wrong",
    [
        *({"windows_per_second": value} for value in (0, -5.0, 1e30, 1e11, 1e-9, "fast", None, True)),
        *({"windows_per_second": float(value)} for value in ("nan", "inf")),
        *({"torch": value} for value in ("", "2.1", "2.130.0", "3.0", "1.13.0", 2.13)),
        *({"date": value} for value in ("", "\x1b[31mtoday", "yesterday", "2026-13-01", 7)),
        {"pack": 4096, "windows_per_second": 2_000.0},
    ],
    ids=str,
)
def test_a_malformed_or_absurd_entry_is_ignored(wrong):
    shape = shape_of(Job())

    def read(entry):
        return from_bytes(json.dumps({"l4": {shape: entry}}).encode())["l4"].get(shape)

    l4 = named_profile("l4")
    assert rate_of(l4, Job(), read({**ENTRY, **wrong})) == rate_of(l4, Job())
    assert not rate_of(l4, Job(), read(ENTRY)).is_estimate, "and a sound one does not"


def test_instances_train_with_the_torch_that_rates_are_for():
    assert TORCH == NODE_TORCH
