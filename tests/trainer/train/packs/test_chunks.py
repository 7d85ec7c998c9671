"""The step over chunks: against plain torch, in slices, with activation checkpointing, resumed; its
inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from tests.jobs import job_of, with_settings
from trainer.machines.kernels import cpu_slice
from trainer.train.packs.chunks import Chunks
from trainer.train.packs.pack import Member, new_model
from trainer.train.packs.strategy import form_pack
from trainer.train.predict.readers import EVALUATION_CHUNK, ChunkReader, Inputs, gather_chunks
from trainer.train.seeds import derive

pytestmark = pytest.mark.slow

JOB = job_of(model="tcn", blocks=3, width=8, chunk=32, batch=4, dropout=0.1, learning_rate=1e-2)
ROWS = 600
STEPS = 30


def member(dtype: torch.dtype = torch.float32, name: str = "tcn_A_1m") -> Member:
    """Return rows with labels that follow from them, one in three missing."""
    generator = torch.Generator().manual_seed(0)
    rows_TF = torch.randn(ROWS, 5, generator=generator, dtype=torch.float64)
    labels_T = rows_TF[:, 0].roll(3) - 0.5 * rows_TF[:, 1].roll(9)
    labels_T[torch.arange(ROWS) % 3 == 0] = torch.nan
    labels_T[-40:] = torch.nan
    rows_TF, labels_TK = rows_TF.to(dtype), labels_T.to(dtype)[:, None]
    scaler = {"mean_F": rows_TF.mean(0), "std_F": rows_TF.std(0)}
    return Member(name=name, rows_TF=rows_TF, labels_TK=labels_TK, **scaler, seed=JOB.train.seed)


def batch(step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(derive(0, "batches", step))
    return torch.randint(0, ROWS - JOB.model.bars_seen, (JOB.train.batch,), generator=generator)


def losses(pack: Chunks, steps: range) -> torch.Tensor:
    return torch.stack([pack.step([True], [batch(step)])[0] for step in steps])


def test_thirty_steps_are_those_of_plain_torch():
    job, item = with_settings(JOB, dropout=0.0, weight_decay=0.5), member(torch.float64)
    ours = losses(Chunks([item], job, micro_batch=2), range(STEPS))
    model = new_model(item, job)
    named = dict(model.named_parameters())
    lengths = [weight for name, weight in named.items() if name.endswith(("bias", "original0"))]
    others = [weight for name, weight in named.items() if not name.endswith(("bias", "original0"))]
    groups = [{"params": lengths, "weight_decay": 0.0}, {"params": others, "weight_decay": 0.5}]
    optimizer = torch.optim.AdamW(groups, lr=job.train.learning_rate)
    scaled = (item.rows_TF - item.mean_F) / item.std_F
    for step in range(STEPS):
        errors = []
        for start in batch(step).tolist():
            stop = min(start + job.model.bars_seen - 1 + job.model.chunk, ROWS)
            outputs = model(scaled[start:stop].T[None])[0]
            labels = item.labels_TK[start + job.model.bars_seen - 1 : stop]
            errors.append((outputs - labels)[torch.isfinite(labels)])
        loss = torch.cat(errors).square().mean()
        assert float(ours[step]) == pytest.approx(float(loss.detach()), rel=1e-9)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), job.train.clip_norm)
        optimizer.step()


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(
            lambda item: Chunks([item], JOB, micro_batch=4), id="in one slice", marks=pytest.mark.nightly
        ),
        pytest.param(
            lambda item: Chunks([item], with_settings(JOB, activation_checkpointing=True), micro_batch=1),
            id="activations computed again",
        ),
        pytest.param(
            lambda item: form_pack([item], JOB), id="as the worker forms it", marks=pytest.mark.nightly
        ),
    ],
)
def test_slices_and_recomputation_do_not_change_the_model(
    other: Callable[[Member], Chunks],
):
    alone = losses(Chunks([member(torch.float64)], JOB, micro_batch=1), range(10))
    torch.testing.assert_close(losses(other(member(torch.float64)), range(10)), alone, rtol=1e-9, atol=0)


def test_half_precision_stays_near_full_precision():
    full = losses(Chunks([member()], JOB, micro_batch=4), range(STEPS))
    half = losses(Chunks([member()], with_settings(JOB, precision="bf16"), micro_batch=4), range(STEPS))
    assert not torch.equal(half, full)
    first = slice(STEPS // 2)  # later their weights are others
    assert float((half[first] / full[first] - 1).abs().mean()) < 5e-3


def test_a_cpu_takes_small_chunks_together_and_large_ones_alone():
    assert cpu_slice(job_of(model="tcn").cost) == 1
    assert cpu_slice(job_of(model="tcn", blocks=4, width=32, chunk=256).cost) > 64


@pytest.mark.nightly
def test_a_pack_of_chunks_learns():
    told = losses(Chunks([member()], with_settings(JOB, dropout=0.0), micro_batch=4), range(180))
    assert told[-20:].mean() < 0.2 * told[:5].mean()


@pytest.mark.parametrize("ema", [pytest.param(0.0, marks=pytest.mark.nightly), 0.9])
def test_a_resumed_run_is_bit_identical(ema: float):
    job = with_settings(JOB, ema=ema)
    whole = Chunks([member()], job, micro_batch=2)
    before = losses(whole, range(10))
    state = whole.snapshot(0)
    after = losses(whole, range(10, STEPS))
    resumed = Chunks([member()], job, micro_batch=2)
    resumed.restore(0, state)
    assert torch.equal(losses(resumed, range(10, STEPS)), after) and torch.isfinite(before).all()
    evaluated = [pack.model(0).state_dict() for pack in (whole, resumed)]
    assert all(torch.equal(weight, evaluated[1][name]) for name, weight in evaluated[0].items())
    assert torch.equal(evaluated[0]["head.bias"], whole.snapshot(0).weights["head.bias"]) == (not ema)


def test_neighbours_are_independent_and_a_stopped_one_stays():
    items, job = [member(), member(name="tcn_B_1m")], with_settings(JOB, ema=0.9)
    pack, alone = Chunks(items, job, micro_batch=4), Chunks(items[:1], job, micro_batch=4)
    still = pack.snapshot(1)
    for step in range(10):
        told = pack.step([True, False], [batch(step), batch(step)])
        assert torch.equal(told[0], alone.step([True], [batch(step)])[0]) and torch.isnan(told[1])
    now = pack.snapshot(1)
    assert all(torch.equal(now.weights[name], weight) for name, weight in still.weights.items())
    assert all(torch.equal(now.average[name], weight) for name, weight in still.average.items())
    assert still.average


def test_bars_beyond_the_last_row_have_no_label():
    item = member()
    read_X = torch.arange(JOB.model.chunk + JOB.model.bars_seen - 1)
    x_BFX = gather_chunks(item.rows_TF, torch.tensor([ROWS - 40]), read_X, item.mean_F, item.std_F)
    assert torch.equal(x_BFX[0, :, 39:], x_BFX[0, :, 39:40].expand(-1, len(read_X) - 39))
    loss = Chunks([item], JOB, micro_batch=4).step([True], [torch.tensor([ROWS - 80])])
    assert torch.isfinite(loss).all()


def test_a_non_finite_loss_leaves_the_model_unchanged():
    item = member()
    item.rows_TF[300] = torch.inf
    broken = replace(item, mean_F=torch.zeros(5), std_F=torch.full((5,), torch.nan))
    pack = Chunks([broken], JOB, micro_batch=4)
    before = pack.snapshot(0).weights
    assert torch.isnan(pack.step([True], [batch(0)])).all()
    assert all(torch.equal(pack.snapshot(0).weights[name], weight) for name, weight in before.items())


def test_an_output_does_not_depend_on_the_bars_asked_for():
    item = member()
    rows_TF = item.rows_TF.repeat(5, 1)  # more than two chunks of evaluation
    first = JOB.model.bars_seen - 1
    inputs = Inputs(rows_TF=rows_TF, mean_F=item.mean_F, std_F=item.std_F)
    evaluator = ChunkReader(inputs, first_bar=first, bars_seen=JOB.model.bars_seen)
    model = new_model(item, JOB)
    bars = np.arange(first, len(rows_TF))
    whole = evaluator.outputs(model, bars)
    assert np.array_equal(evaluator.outputs(model, bars[1500:2600:7]), whole[1500:2600:7])
    # On another grid the sums are others, and the numbers the same but for rounding.
    moved = ChunkReader(inputs, first_bar=first + 100, bars_seen=JOB.model.bars_seen)
    np.testing.assert_allclose(moved.outputs(model, bars[100:]), whole[100:], rtol=1e-4, atol=1e-5)
    assert len(bars) > 2 * EVALUATION_CHUNK
