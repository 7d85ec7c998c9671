"""Models that read a context: each series' own number in training, scores and predict; no look-ahead;
memory.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.jobs import job_of
from tests.pieces import piece_of
from tests.predictions import of_test, predict_file
from trainer.base.settings import CHUNKS, CONTEXT
from trainer.data.read.reading import read_candles
from trainer.data.synthetic import synthetic_candles
from trainer.machines.memory import footprint
from trainer.models import MODELS
from trainer.store.card import read_card
from trainer.store.weights import load, save
from trainer.train.evaluate.scores import reader_for
from trainer.train.inputs.rows import prepare
from trainer.train.inputs.series import alone, lay
from trainer.train.packs.pack import new_model
from trainer.train.packs.sequential import SequentialPack
from trainer.train.piece import run_of
from trainer.train.predict.load_model import target_of

SIZE = {"model": "transformer", "preset": "tiny", "width": 8, "blocks": 1}
SMALL = {**SIZE, "lookback": 8, "epochs": 1, "batch": 64}


def test_only_plain_models_of_windows_read_a_context():
    for home in MODELS.values():
        assert not (home.reads_context and (home.has_stacked_form or home.reads == CHUNKS))


def test_a_pack_gathers_each_series_own_number():
    job = job_of(**SMALL, dropout=0.0, hide_series=0.0)
    parts = [
        prepare(synthetic_candles(name, bars=900, timeframe="1h", seed=2), job, series=n)
        for n, name in enumerate("AB", 1)
    ]
    laid = lay(parts, rows=[900, 900], padding=0)
    assert laid.context_RC is not None and laid.series[1].context_TC is not None
    assert laid.context_RC[:, 0].tolist() == [1] * 900 + [2] * 900
    assert torch.equal(laid.context_RC[900:, 1:], laid.series[0].context_TC[:, 1:])
    assert laid.series[1].context_TC.data_ptr() == laid.context_RC[900:].data_ptr(), "a view"
    moved = laid.moved(lambda value: value.clone() if isinstance(value, torch.Tensor) else value)
    assert moved.series[1].context_TC.data_ptr() == moved.context_RC[900:].data_ptr()
    asked = []

    class Asking(SequentialPack):
        def _summed_loss(self, number, starts_B, keys_L2, first):
            self._models[number].register_forward_pre_hook(lambda _, inputs: asked.append(inputs[3]))
            return super()._summed_loss(number, starts_B, keys_L2, first)

    member = run_of(laid, job, model="m", seed=0).member
    starts = torch.tensor([300, 1300])
    Asking([member], job).step([True], [starts])
    assert torch.equal(asked[0], laid.context_RC[starts + 7].long())


def test_models_that_read_no_context_get_none():
    job = job_of(model="lstm", lookback=8)
    data = alone(prepare(synthetic_candles("A", bars=900, timeframe="1h", seed=2), job))
    assert data.context_RC is None and data.series[0].context_TC is None


def test_no_output_moves_with_later_bars():
    job = job_of(**SMALL)
    candles = synthetic_candles("A", bars=900, timeframe="1h", seed=2)
    cut = 700
    later = replace(candles, close=np.where(np.arange(900) > cut, candles.close * 1.01, candles.close))
    later = replace(later, high=np.maximum(later.high, later.close), low=np.minimum(later.low, later.close))
    one, other = (prepare(each, job) for each in (candles, later))
    other = replace(other, mean_F=one.mean_F, std_F=one.std_F)  # fitted on training, which is before
    model = new_model(run_of(alone(one), job, model="m", seed=0).member, job)
    bars = np.arange(cut - 60, cut + 60)
    before, after = (reader_for(each, job).outputs(model, bars) for each in (one, other))
    same = (before == after).all(1)
    assert same[:61].all() and not same[61:].any()


def test_the_context_is_counted_among_the_rows():
    def rows(**keys: str) -> int:
        return footprint(job_of(**keys), features=3, bars=1_000, windows=1, on_gpu=False).rows

    with_it, without = (rows(model=name, target="direction") for name in ("transformer", "lstm"))
    stacked = rows(strategy="sequential")
    assert with_it - stacked == 1_000 * len(CONTEXT) * 2 and without > stacked


@pytest.mark.slow
def test_a_pooled_model_predicts_by_each_series_own_number(tmp_path, write_candles, train_piece):
    for number, symbol in enumerate(("AAA", "BBB")):
        write_candles(tmp_path, symbol, bars=1500, seed=number, signal=1.0)
    job = job_of(name="mix", target="direction", horizon=1, learning_rate=1e-2, pooled=True, **SMALL)
    file = tmp_path / train_piece(piece_of(job, "AAA", "BBB"), job, tmp_path, tmp_path)["file"]
    card = read_card(file)
    target, scores = target_of(card, file), []
    for series in card.series:
        rows = predict_file(file, tmp_path, symbol=series.symbol)
        forecasts, labels = of_test(rows, read_candles(tmp_path)[series.symbol], series.splits["test"])
        scores.append(target.scores(forecasts, labels))
        assert scores[-1] == {key: series.metrics["test"][key] for key in scores[-1]}
    # Under the other's number a series gets other forecasts.
    tensors, _ = load(file)
    save(
        tmp_path / "first.safetensors", tensors, replace(card, series=[replace(card.series[1], symbol="AAA")])
    )
    one = predict_file(tmp_path / "first.safetensors", tmp_path, last=3, symbol="AAA")
    second = [replace(card.series[0], symbol="CCC"), replace(card.series[1], symbol="AAA")]
    save(tmp_path / "second.safetensors", tensors, replace(card, series=second))
    other = predict_file(tmp_path / "second.safetensors", tmp_path, last=3, symbol="AAA")
    assert [row.values for row in one] != [row.values for row in other]
