"""A symbol ready to train on: its scaler, labels and splits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.jobs import job_of
from trainer.base.errors import DataError
from trainer.train.inputs.rows import fit_scaler, prepare

JOB = job_of(lookback=20, horizon=3)


def test_the_scaler_comes_from_the_training_span_alone(make_candles) -> None:
    candles = make_candles(2000)
    data = prepare(candles, JOB)
    late = np.arange(2000) >= data.spans.train.stop
    wild = {
        name: np.where(late, getattr(candles, name) * 50, getattr(candles, name))
        for name in ("open", "high", "low", "close")
    }
    other = prepare(replace(candles, **wild, volume=np.where(late, candles.volume * 9, candles.volume)), JOB)
    assert torch.equal(data.mean_F, other.mean_F) and torch.equal(data.std_F, other.std_F)
    assert not torch.equal(data.rows_TF, other.rows_TF)


def test_scaled_training_rows_have_mean_zero_and_deviation_one(make_candles) -> None:
    data = prepare(make_candles(3000), JOB)
    starts = data.starts["train"]
    rows = data.rows_TF[starts[0] : starts[-1] + JOB.model.lookback]
    scaled = ((rows - data.mean_F) / data.std_F).double()
    varied = rows.std(0) > 1e-6
    torch.testing.assert_close(scaled.mean(0), torch.zeros(rows.shape[1]).double(), rtol=0, atol=2e-3)
    torch.testing.assert_close(
        scaled.std(0)[varied], torch.ones(int(varied.sum())).double(), rtol=2e-3, atol=0
    )


def test_a_constant_feature_is_scaled_by_one() -> None:
    rows = torch.randn(500, 3)
    rows[:, 1] = 4.7
    mean, std = fit_scaler(rows, torch.arange(500) < 300)
    assert std[1] == 1.0 and mean[1] == pytest.approx(4.7)
    torch.testing.assert_close(std[0], rows[:300, 0].std(correction=0))


def test_a_windows_label_is_that_of_its_last_bar(make_candles) -> None:
    candles = make_candles(2000, drop=[600])
    data = prepare(candles, JOB)
    for starts in data.starts.values():
        assert starts.dtype == torch.int64 and (starts.diff() > 0).all()
        last = (starts + JOB.model.lookback - 1).numpy()
        labels = data.labels_TK[last, 0]
        assert not np.isnan(labels).any()
        assert np.array_equal(labels == 1, candles.close[last + JOB.target.horizon] > candles.close[last])


def test_splits_of_a_card_have_times_bars_and_windows(make_candles) -> None:
    splits = prepare(make_candles(2000), JOB).splits()
    assert splits["train"]["first"] == "2024-01-01T04:16:00Z"  # minute 256, after the warm-up
    assert splits["test"]["last"] == "2024-01-02T09:19:00Z"
    assert splits["embargo"] == 3 and splits["test"]["windows"] == splits["test"]["bars"] - JOB.target.horizon
    assert splits["train"]["last"] < splits["validation"]["first"]


def test_given_features_replace_the_computed_ones(make_candles) -> None:
    data = prepare(make_candles(200), JOB, features=torch.randn(200, 2), warmup=0)
    assert data.rows_TF.shape == (200, 2) and data.mean_F.shape == (2,)
    assert data.starts["train"][0] == 0


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_features_that_are_not_finite_are_refused(make_candles, value: float) -> None:
    rows = torch.randn(200, 2)
    rows[50, 1] = value
    with pytest.raises(DataError, match="feature 1 of AAA is not finite at 2024-01-01T00:50:00Z"):
        prepare(make_candles(200), JOB, features=rows, warmup=0)
