from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from tests.jobs import job_of, with_settings
from trainer.base.errors import UsageError
from trainer.data.features import FEATURES
from trainer.job.job import Job
from trainer.machines.chips import named_profile, packaged
from trainer.machines.memory import (
    FEWEST_STEPS,
    FLOAT,
    REFERENCE_FEATURES,
    Fit,
    Footprint,
    batch_limit,
    chunk_slices,
    figures,
    filling_models,
    fit,
    footprint,
    is_half,
)
from trainer.models import network_of
from trainer.train.packs.pack import architecture_of


def fitted(profile: str, job: Job, memory_gib: float, *, bars: int = 500_000, **options: Any) -> Fit:
    return fit(named_profile(profile), job, memory_gib=memory_gib, features=37, bars=bars, **options)


def needed(job: Job, *, windows: int = 8, bars: int = 0, **options: Any) -> Footprint:
    return footprint(job, features=37, bars=bars, windows=windows, **options)


def test_the_reference_has_the_features_of_today():
    assert len(FEATURES) == REFERENCE_FEATURES


PEAK = r"""
import re, sys, torch
from trainer.job.reading import job_from
from trainer.models.lstm.network import build
torch.set_num_threads(1)
model = build(job_from({'model': {'dropout': 0.0}}).model.architecture(features=37, outputs=1))
def peak(windows):
    model(torch.randn(60, windows, 37)).sum().backward()
    # Not ru_maxrss: that one is handed down from whoever started this process.
    return int(re.search(r"VmHWM:\s+(\d+)", open("/proc/self/status").read())[1]) * 1024
small = peak(8)
print(peak(int(sys.argv[1])) - small)
"""


@pytest.mark.nightly  # by what autograd keeps: tests/benchmarks/test_memory.py
@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems count memory otherwise")
def test_the_formula_predicts_the_peak_of_a_step_on_this_cpu():
    windows = 512
    command = [sys.executable, "-c", PEAK, str(windows)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    part = needed(job_of(strategy="sequential", dropout=0.0), windows=windows, on_gpu=False)
    # oneDNN keeps about as much for itself as is assumed of cuDNN.
    assert int(done.stdout) == pytest.approx(part.kept + part.workspace, rel=0.25)


def test_every_chip_trains_at_least_one_model():
    for profile in packaged().values():
        found = figures(profile)
        assert 1 <= found["models_per_gpu"].value <= filling_models(profile)
        assert {figure.basis for figure in found.values()} == {"estimate"}
        assert all(batch & (batch - 1) == 0 for batch in found["batch"].value.values())


def test_a_larger_chip_has_a_higher_batch_ceiling():
    small, large = (figures(packaged()[name])["batch"].value for name in ("v100_16gb", "h200"))
    assert small["1m"] < large["1m"]
    assert small["1d"] == large["1d"] <= 7 * 365 * 0.7 / FEWEST_STEPS


def test_memory_that_others_hold_leaves_room_for_fewer():
    profile = packaged()["rtx_4090"]
    assert figures(profile, memory_gib=6.0)["models_per_gpu"].value < figures(profile)["models_per_gpu"].value


def test_a_small_chip_takes_the_same_batch_in_slices():
    job = job_of(batch=65_536)
    large = fitted("h200", job, 141.0, bars=3_700_000)
    small = fitted("l4_eighth", job, 2.79, bars=3_700_000)
    assert large.micro_batch == job.train.batch
    assert small.micro_batch < job.train.batch and small.models == 1
    assert small.memory_per_model_gib < 2.79


def test_pack_and_slices_of_the_job_are_kept():
    found = fitted("h100", job_of(pack=3, micro_batch=64), 80.0, bars=100_000)
    assert (found.models, found.micro_batch) == (3, 64)


def test_models_are_limited_by_the_users_figure_and_by_memory():
    profile = replace(packaged()["h100"], yours={"models_per_gpu": 40})
    assert fit(profile, Job(), memory_gib=80.0, features=37, bars=100_000).models == 40
    less = fit(profile, Job(), memory_gib=8.0, features=37, bars=3_700_000)
    assert less.models < 40, "memory is a limit still"


def test_rows_that_do_not_fit_are_refused_with_both_numbers():
    line = r"one model of 20,000,000 bars needs 6\.0 GiB, l4_eighth has room for 1\.8 GiB"
    with pytest.raises(UsageError, match=line):
        fitted("l4_eighth", Job(), 2.79, bars=20_000_000)


def test_an_auto_batch_leaves_a_hundred_steps_per_epoch():
    known = {"memory_gib": 140.0, "features": 37, "bars": 3_679_200, "timeframe": "1m"}
    h200 = named_profile("h200")
    assert batch_limit(h200, job_of(batch=0), windows=2_500_000, **known) == 16_384
    assert batch_limit(h200, job_of(batch=0), windows=30_000, **known) == 256
    assert batch_limit(h200, job_of(batch=0), windows=50, **known) == 1
    assert batch_limit(h200, job_of(batch=0), windows=2_500_000, **{**known, "memory_gib": 4.0}) < 16_384
    mine = replace(h200, yours={"batch": {"1m": 1000}})
    assert batch_limit(mine, job_of(batch=0), windows=2_500_000, **known) == 512
    assert batch_limit(mine, job_of(batch=0), windows=2_500_000, **{**known, "timeframe": "5m"}) == 16_384


def test_an_open_batch_is_placed_as_the_reference_batch():
    found = fitted("l4", job_of(batch=0), 22.0)
    assert found == fitted("l4", Job(), 22.0)


TCN = job_of(model="tcn", batch=1500)


def test_a_tcns_chunks_are_sliced_unless_they_fit():
    large = fitted("h200", with_settings(TCN, batch=64), 140.0)
    assert (large.models, large.micro_batch, large.activation_checkpointing) == (1, 64, False)
    small = fitted("l4", TCN, 22.0)
    assert 1 < small.micro_batch < 200 and not small.activation_checkpointing
    twice = needed(TCN, bars=500_000, windows=2 * small.micro_batch).total
    assert twice > 22.0 * 2**30 * 0.9, "twice the slice would not have fitted"


def test_activations_are_recomputed_if_no_chunk_fits():
    long = with_settings(TCN, chunk=32_768, batch=4)
    found = fitted("l4_eighth", long, 3.0)
    assert (found.micro_batch, found.activation_checkpointing) == (2, True)
    with pytest.raises(UsageError, match="l4_eighth has room for 1"):
        fitted("l4_eighth", with_settings(long, chunk=131_072), 2.79)


def test_memory_measured_by_a_tuner_overrides_the_formula():
    tuned = with_settings(TCN, micro_batch=500)
    assert fitted("l4", TCN, 22.0, tuned=tuned).micro_batch < 500, "the formula would have sliced it"
    assert fitted("l4", TCN, 22.0, tuned=tuned, measured_gib=15.0).micro_batch == 500
    # Beside the bars it is too much.
    assert fitted("l4", TCN, 22.0, tuned=tuned, measured_gib=19.0).micro_batch < 500
    own = with_settings(TCN, micro_batch=3)
    assert fitted("l4", own, 22.0).micro_batch == 3


def test_larger_chips_and_checkpointing_fit_more_chunks():
    small, large = (chunk_slices(packaged()[name], "tcn") for name in ("t4", "h200"))
    assert 0 < small[0] < small[1] and small[0] < large[0] < large[1]


def test_a_sequential_pack_shares_the_memory_of_a_step():
    rooms = {"memory_gib": 3.0, "features": 37, "bars": 300_000}
    many = job_of(batch=2048)
    profile = replace(named_profile("h100"), yours={"models_per_gpu": 40})
    jobs = (with_settings(many, strategy=strategy) for strategy in ("sequential", "streams"))
    in_turn, at_once = (fit(profile, job, **rooms).models for job in jobs)
    assert in_turn > at_once


SMALL_TCN = job_of(model="tcn", blocks=4, width=32, chunk=256)


@pytest.mark.parametrize(
    "job", [Job(), job_of(layers=1, hidden=24), SMALL_TCN, with_settings(SMALL_TCN, width=len(FEATURES))]
)
def test_the_formula_counts_the_models_weights(job):
    model = network_of(job.model.name).build(architecture_of(job, features=len(FEATURES)))
    weights = sum(parameter.numel() for parameter in model.parameters())
    assert job.model.cost(features=len(FEATURES), outputs=1).weights == weights


@pytest.mark.parametrize("job", [job_of(strategy="sequential"), job_of(strategy="fused"), SMALL_TCN])
def test_an_average_of_the_weights_is_one_more_copy(job):
    one = FLOAT * job.model.cost(features=37, outputs=1).weights
    plain, averaged = needed(job), needed(with_settings(job, ema=0.99))
    assert averaged.weights - plain.weights == one
    assert averaged.copies - plain.copies == one
    assert needed(with_settings(job, ema=0.99, checkpoint_seconds=0)).copies == one


def test_rows_are_on_the_device_once_and_twice_if_stacked():
    jobs = (job_of(strategy=name) for name in ("sequential", "fused"))
    assert [needed(job, bars=1_000_000, windows=1).rows for job in jobs] == [168e6, 320e6]


def test_an_open_strategy_counts_as_the_larger_one():
    small, large = (needed(Job(), bars=1_000, windows=windows).total for windows in (256, 512))
    assert small < large
    jobs = (job_of(strategy=name) for name in ("streams", "fused"))
    assert small == max(needed(job, bars=1_000, windows=256).total for job in jobs)


def test_half_precision_is_a_gpus_default_where_it_is_faster():
    """A narrow LSTM is faster in fp32: measured on an H100, docs/benchmarks.md."""
    for job in (job_of(hidden=129), job_of(model="tcn"), job_of(model="transformer")):
        assert is_half(job, on_gpu=True) and not is_half(job, on_gpu=False)
    assert not is_half(Job(), on_gpu=True) and not is_half(job_of(hidden=128), on_gpu=True)
    assert is_half(job_of(precision="bf16"), on_gpu=False)
    assert not is_half(job_of(precision="fp32"), on_gpu=True)


def test_several_slices_add_the_memory_of_gradients():
    whole, slices = (needed(with_settings(SMALL_TCN, batch=batch), windows=4) for batch in (4, 8))
    assert 0 < slices.step - whole.step <= FLOAT * SMALL_TCN.model.cost(features=37, outputs=1).weights


def test_a_stream_of_plain_modules_has_a_workspace_on_a_gpu():
    stream, alone = (needed(job_of(strategy=name, precision="fp32")) for name in ("streams", "sequential"))
    assert stream.workspace == alone.workspace > 16 * 2**20


@pytest.mark.parametrize(("hidden", "batch", "precision", "mib"), [
    (64, 256, "fp32", 156.25), (64, 256, "bf16", 55.45), (128, 1024, "fp32", 1149.62), (128, 1024, "bf16", 347.75),
])  # fmt: skip
def test_a_plain_lstm_takes_what_it_took_on_a_gpu(hidden, batch, precision, mib):
    """MiB that torch had allocated at most in three steps on an H100 (benchmarks.memory, 2026-11-26), and the
    17 that recorded ones took more on an H200 (2026-11-28).
    """
    job = job_of(strategy="sequential", hidden=hidden, batch=batch, precision=precision)
    assert needed(job, bars=20_000, windows=batch).step / 2**20 == pytest.approx(mib + 17, rel=0.03)
