"""The memory formula is within 10 % of a count of what autograd keeps and a step allocates, on this CPU."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch

from benchmarks.memory import ALLOWED, counted, held, predicted
from tests.jobs import job_of, with_settings
from tests.models import SETTINGS, make_model
from trainer.data.features import FEATURES
from trainer.job.job import Job
from trainer.machines.memory import FLOAT
from trainer.store.card import CardSeries
from trainer.train.inputs.encoder import pinned
from trainer.train.precision import cpu_has_bf16_recurrence

LSTMS = [
    {"layers": 1, "hidden": 32, "lookback": 20, "batch": 64},
    {"layers": 3, "hidden": 48, "lookback": 12, "batch": 48, "dropout": 0.0},
]
MLPS = [
    {"layers": 2, "hidden": 64, "lookback": 60, "batch": 256},
    {"layers": 3, "hidden": 256, "lookback": 20, "batch": 512},
]
TCNS = [
    {"blocks": 4, "width": 64, "chunk": 128, "batch": 4},
    {"blocks": 6, "width": 32, "chunk": 64, "batch": 4, "dropout": 0.0},
]
AGAIN = {"activation_checkpointing": True}
BF16 = pytest.param(
    "bf16",
    marks=pytest.mark.skipif(not cpu_has_bf16_recurrence(), reason="oneDNN's kernels of this CPU differ"),
)


@pytest.fixture(scope="module", autouse=True)
def nothing_to_collect() -> None:
    """Spare each count's collection of garbage the objects of earlier tests."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads of such small steps wait for each other on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def one_slice(**settings: object) -> Job:
    job = job_of(**settings)
    return with_settings(job, micro_batch=job.train.batch)


@pytest.mark.parametrize(
    "precision", ["fp32", pytest.param("bf16", marks=(*BF16.marks, pytest.mark.nightly))]
)
@pytest.mark.parametrize("strategy", ["sequential", "streams", "fused"])
@pytest.mark.parametrize("shape", LSTMS)
def test_an_lstms_memory_is_predicted_for_every_strategy(shape, strategy, precision):
    job = one_slice(
        **shape, strategy=strategy, pack=1 if strategy == "sequential" else 2, precision=precision
    )
    part, beside = predicted(job, on_gpu=False)
    measured = counted(job)
    assert measured.kept == pytest.approx(beside * (part.kept - part.assumed), rel=ALLOWED)
    if strategy == "fused":
        assert measured.peak == pytest.approx(beside * (part.kept + part.workspace), rel=ALLOWED)


@pytest.mark.parametrize("precision", ["fp32", pytest.param("bf16", marks=pytest.mark.nightly)])
@pytest.mark.parametrize("strategy", ["sequential", "fused"])
@pytest.mark.parametrize("shape", [MLPS[0], pytest.param(MLPS[1], marks=pytest.mark.nightly)])
def test_an_mlps_memory_and_peak_are_predicted(shape, strategy, precision):
    pack = 1 if strategy == "sequential" else 2
    job = one_slice(**shape, model="mlp", strategy=strategy, pack=pack, precision=precision)
    part, beside = predicted(job, on_gpu=False)
    measured = counted(job)
    assert measured.kept == pytest.approx(beside * part.kept, rel=ALLOWED)
    assert measured.peak == pytest.approx(beside * (part.kept + part.workspace), rel=ALLOWED)


@pytest.mark.parametrize("strategy", ["sequential", "fused"])
@pytest.mark.parametrize("shape", LSTMS)
def test_a_checkpointed_lstms_memory_is_predicted(shape, strategy):
    job = one_slice(**shape, **AGAIN, strategy=strategy, pack=1, precision="fp32")
    part, _ = predicted(job, on_gpu=False)
    assert counted(job).kept == pytest.approx(part.kept, rel=ALLOWED)


@pytest.mark.parametrize("precision", ["fp32", BF16])
@pytest.mark.parametrize("shape", LSTMS)
def test_a_checkpointed_fused_packs_peak_is_predicted(shape, precision):
    job = one_slice(**shape, **AGAIN, strategy="fused", pack=2, precision=precision)
    part, beside = predicted(job, on_gpu=False)
    assert counted(job).peak == pytest.approx(beside * (part.kept + part.workspace), rel=ALLOWED)


@pytest.mark.parametrize("again", [{}, AGAIN], ids=["kept", "again"])
@pytest.mark.parametrize("precision", ["fp32", BF16])
@pytest.mark.parametrize("shape", TCNS)
def test_a_tcns_memory_and_peak_are_predicted(shape, precision, again):
    job = one_slice(**shape, **again, model="tcn", precision=precision)
    part, _ = predicted(job, on_gpu=False)
    measured = counted(job)
    assert measured.kept == pytest.approx(part.kept, rel=ALLOWED)
    assert measured.peak == pytest.approx(part.kept + part.workspace, rel=ALLOWED)


@pytest.mark.parametrize("precision", ["fp32", pytest.param("bf16", marks=pytest.mark.nightly)])
@pytest.mark.parametrize(
    ("family", "sizes", "batch"),
    [
        (
            "transformer",
            {"preset": "tiny", "blocks": 3, "width": 64, "heads": 4, "lookback": 32, "series": 4},
            64,
        ),
        ("tcn", {"blocks": 4, "width": 64, "chunk": 128}, 4),
    ],
)
def test_a_frozen_encoder_takes_no_gradients_or_moments(
    family, sizes, batch, precision, tmp_path, monkeypatch
):
    monkeypatch.setitem(SETTINGS, family, sizes)
    numbers = {"mean": [0.0] * len(FEATURES), "std": [1.0] * len(FEATURES), "limit": 10.0}
    ended = {"validation": {"first": "2020-01-01T00:00:00Z", "last": "2020-01-01T00:00:00Z"}}
    series = [CardSeries(symbol="S", calendar="24x7", horizon=1, scaler=numbers, splits=ended)]
    make_model(tmp_path / "encoder.safetensors", family, series=series)
    keys = {
        **sizes,
        "model": family,
        "target": "direction",
        "precision": precision,
        "batch": batch,
        "micro_batch": batch,
    }
    job = pinned(job_of(**keys, encoder=str(tmp_path / "encoder.safetensors"), encoder_training="frozen"))
    part, _ = predicted(job, on_gpu=False)
    measured = counted(job)
    assert measured.kept == pytest.approx(part.kept, rel=ALLOWED)
    assert measured.peak == pytest.approx(part.kept + part.workspace, rel=ALLOWED)
    assert held(job) == pytest.approx(part.weights, rel=ALLOWED)
    whole, _ = predicted(job_of(**keys), on_gpu=False)
    assert part.step - part.rows < 0.4 * (whole.step - whole.rows)


@pytest.mark.parametrize("ema", [0.0, 0.99])
@pytest.mark.parametrize(
    "shape", [{**LSTMS[1], "strategy": "sequential"}, {**TCNS[1], "model": "tcn"}], ids=["lstm", "tcn"]
)
def test_memory_held_between_steps_is_predicted(shape, ema):
    job = one_slice(**shape, ema=ema)
    part, _ = predicted(job, on_gpu=False)
    gradients = (
        FLOAT * job.model.cost(features=len(FEATURES), outputs=1).weights if job.model.name == "tcn" else 0
    )  # there, of the workspace
    assert held(job) == pytest.approx(part.weights + gradients, rel=ALLOWED)
