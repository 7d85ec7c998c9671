"""Validation of several models: one read of the device, many windows at once, and the losses of one at a
time.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.jobs import job_of
from tests.nightly import others_nightly
from tests.pieces import piece_of
from tests.trainer.train.packs.test_waits import Copies
from tests.trainer.train.rosters import Roster
from trainer.job.job import Job
from trainer.train import loop
from trainer.train.evaluate import epoch_scores
from trainer.train.evaluate.epoch_scores import AT_ONCE_BYTES, MOST_WINDOWS, at_once_of
from trainer.train.inputs.source import Source, plan_and_open, read_source
from trainer.train.packs.pack import new_model
from trainer.train.packs.strategy import form_pack
from trainer.train.piece import run_of
from trainer.train.predict.readers import AtOnce, Inputs, forward_of, on_host, reader_of
from trainer.train.run import Run

CPU, GPU = torch.device("cpu"), torch.device("cuda")
LSTM: dict[str, Any] = {"lookback": 12, "hidden": 4, "batch": 64, "steps_per_epoch": 3}
TCN: dict[str, Any] = {
    "model": "tcn",
    "target": "direction",
    "width": 4,
    "blocks": 2,
    "chunk": 32,
    "batch": 4,
}


@pytest.fixture(scope="module")
def sources(tmp_path_factory, write_candles):
    """Return the source of a job on one symbol."""
    folder = tmp_path_factory.mktemp("validated")
    write_candles(folder, "SIG-USD", bars=1500, signal=1.0)

    def source_of(job: Job) -> Source:
        return read_source(piece_of(job), job, plan_and_open(job, folder, scratch=folder))

    return source_of


def trained(job: Job, source: Source) -> Run:
    """Train one model of a source; return its run."""
    run = run_of(source.folds[1], job, model="m", seed=0)
    return Roster(run).train(form_pack, job).done["m"]


@pytest.mark.parametrize("keys", others_nightly([LSTM, TCN], lambda keys: keys is LSTM))
def test_losses_of_many_windows_at_once_agree_by_epoch(keys, sources, monkeypatch):
    job = job_of(epochs=3, patience=3, learning_rate=1e-2, precision="fp32", **keys)
    source = sources(job)
    one = trained(job, source)
    monkeypatch.setattr(epoch_scores, "at_once_of", lambda *_: AtOnce(most=1000))
    many = trained(job, source)
    losses = [[epoch["validation_loss"] for epoch in run.history] for run in (one, many)]
    assert len(losses[0]) == 3 and len({round(loss, 5) for loss in losses[0]}) > 1
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)
    assert many.best_epoch == one.best_epoch
    assert many.best_outputs is not None and one.best_outputs is not None
    np.testing.assert_allclose(many.best_outputs, one.best_outputs, atol=1e-5)


def test_bf16_validates_in_bf16_and_leaves_the_card_to_fp32(sources, monkeypatch):
    job = job_of(epochs=2, learning_rate=1e-2, precision="bf16", **TCN)
    source = sources(job)
    one = trained(job, source)
    assert one.best_outputs is None, "the card's are computed in fp32"
    monkeypatch.setattr(epoch_scores, "at_once_of", lambda *_: AtOnce(most=7, dtype=torch.bfloat16))
    many = trained(job, source)
    losses = [[epoch["validation_loss"] for epoch in run.history] for run in (one, many)]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-3)
    monkeypatch.setattr(epoch_scores, "at_once_of", lambda *_: AtOnce())
    assert trained(job, source).history[0]["validation_loss"] != losses[0][0], "bf16 would show"


def test_models_whose_epochs_end_together_are_read_once(sources, monkeypatch):
    job = job_of(epochs=2, **LSTM)
    source, reads = sources(job), list[int]()

    def counted(tensors: list[torch.Tensor]) -> list[np.ndarray]:
        reads.append(len(tensors))
        return [on_host(tensor) for tensor in tensors]

    alone = trained(job, source)
    monkeypatch.setattr(loop, "read", counted)
    runs = [run_of(source.folds[1], job, model=name, seed=0, draws="m") for name in "abc"]
    done = Roster(*runs).train(form_pack, job, places=3).done
    assert reads == [3, 3]
    assert all(run.history == alone.history for run in done.values())


@pytest.mark.parametrize("keys", others_nightly([LSTM, TCN], lambda keys: keys is TCN))
def test_a_validation_waits_for_nothing_until_it_is_read(keys, sources, monkeypatch):
    """Nor does it send anything: its windows are on the device from the start."""
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())  # meta has none
    job = job_of(**keys)
    (data,) = sources(job).folds[1].series
    member = run_of(sources(job).folds[1], job, model="m", seed=0).member
    rows = replace(member, rows_TF=member.rows_TF.to("meta"))
    inputs = Inputs(rows_TF=rows.rows_TF, mean_F=data.mean_F.to("meta"), std_F=data.std_F.to("meta"))
    at_once = AtOnce(most=300)
    seen = job.model.bars_seen
    reader = reader_of(job.model.reads, inputs, bars_seen=seen, first_bar=seen - 1, at_once=at_once)
    forward = forward_of([(data.rows("validation"), reader), (data.rows("train")[-50:], reader)])
    model = new_model(rows, job)
    with Copies() as copies:
        outputs_NO = forward(model)
    assert outputs_NO.shape == (len(data.rows("validation")) + 50, job.target.outputs)
    assert copies.waiting == [] and copies.others == 0


def test_a_gpu_reads_thousands_of_windows_at_once_within_a_bound(monkeypatch):
    monkeypatch.setattr(epoch_scores, "matmul_dtype", lambda *_: torch.bfloat16)
    assert at_once_of(job_of(), CPU).most == 0, "as a prediction does"
    small = at_once_of(job_of(hidden=8, lookback=20), GPU)
    assert small == AtOnce(most=MOST_WINDOWS, dtype=torch.bfloat16)
    wide = at_once_of(job_of(hidden=512, lookback=240), GPU)
    assert 256 <= wide.most < 2048 < AT_ONCE_BYTES
    assert 1 < at_once_of(job_of(**TCN), GPU).most <= 64
