"""The formula's parts that can be counted without a step; what a step keeps is held to a count in tests/benchmarks."""

from __future__ import annotations

import pytest

from trainer.data.features import FEATURES
from trainer.gpu_profiles.footprint import FLOAT, footprint, is_half, num_weights
from trainer.job import Job, job_of, with_settings
from trainer.models import network_of
from trainer.train.packs.pack import architecture_of

TCN = job_of(model="tcn", blocks=4, width=32, chunk=256)


@pytest.mark.parametrize("job", [Job(), job_of(layers=1, hidden=24), TCN, with_settings(TCN, width=len(FEATURES))])
def test_it_counts_the_weights_that_the_model_has(job):
    model = network_of(job.model.name).build(architecture_of(job, features=len(FEATURES)))
    assert num_weights(job, features=len(FEATURES)) == sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("job", [job_of(strategy="lanes"), job_of(strategy="fused"), TCN])
def test_an_average_of_the_weights_is_one_copy_more_and_one_in_its_checkpoints(job):
    one = FLOAT * num_weights(job, features=37)
    plain, averaged = (footprint(each, features=37, bars=0, windows=8) for each in (job, with_settings(job, ema=0.99)))
    assert averaged.weights - plain.weights == one
    assert averaged.copies - plain.copies == one
    assert footprint(with_settings(job, ema=0.99, checkpoint_seconds=0), features=37, bars=0, windows=8).copies == one


def test_rows_are_on_the_device_once_and_those_of_a_joined_table_twice():
    rows = [footprint(job_of(strategy=name), features=37, bars=1_000_000, windows=1).rows for name in ("lanes", "fused")]
    assert rows == [168e6, 320e6]


def test_memory_grows_with_the_slice_and_an_open_strategy_is_the_dearer_one():
    small, large = (footprint(Job(), features=37, bars=1_000, windows=windows).total for windows in (256, 512))
    assert small < large
    kinds = [footprint(job_of(strategy=name), features=37, bars=1_000, windows=256).total for name in ("streams", "fused")]
    assert small == max(kinds)


def test_half_precision_is_what_a_gpu_does_unless_the_job_says_otherwise():
    assert is_half(Job(), on_gpu=True) and not is_half(Job(), on_gpu=False)
    assert is_half(job_of(precision="bf16"), on_gpu=False) and not is_half(job_of(precision="fp32"), on_gpu=True)


def test_gradients_of_several_slices_lie_beside_what_is_kept():
    whole = footprint(with_settings(TCN, batch=4), features=37, bars=0, windows=4)
    slices = footprint(with_settings(TCN, batch=8), features=37, bars=0, windows=4)
    assert 0 < slices.step - whole.step <= FLOAT * num_weights(TCN, features=37)


def test_a_stream_of_its_own_has_a_workspace_of_its_own_on_a_gpu():
    on_gpu, on_cpu = (
        footprint(job_of(strategy="streams", precision="fp32"), features=37, bars=0, windows=8, on_gpu=gpu)
        for gpu in (True, False)
    )
    assert on_gpu.workspace - on_cpu.workspace == 16 * 2**20
