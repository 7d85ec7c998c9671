from __future__ import annotations

import numpy as np
import pytest
import torch

from trainer.data.rolling import exponential_mean, rolling_extremes, rolling_moments, rolling_sum, shift

SPANS = (1, 2, 3, 5, 15, 60, 240)


@pytest.fixture(scope="module")
def series() -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(0).normal(0, 1, 700).cumsum() + 1e6)


def windows(series: torch.Tensor, span: int) -> torch.Tensor:
    return series.unfold(0, span, 1)


def test_shift_repeats_the_first_bar_before_the_beginning() -> None:
    x = torch.tensor([1.0, 2.0, 3.0])
    assert shift(x, 1).tolist() == [1.0, 1.0, 2.0]
    assert shift(x, 5).tolist() == [1.0, 1.0, 1.0]
    assert shift(x, 0).tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("span", SPANS)
def test_rolling_values_equal_those_of_each_window(series: torch.Tensor, span: int) -> None:
    plain = windows(series, span)
    mean, deviation = rolling_moments(series, SPANS)[span]
    low, high = rolling_extremes(series, series + 1, SPANS)[span]
    torch.testing.assert_close(rolling_sum(series, SPANS)[span][span - 1 :], plain.sum(1), rtol=1e-14, atol=0)
    torch.testing.assert_close(mean[span - 1 :], plain.mean(1), rtol=1e-14, atol=0)
    torch.testing.assert_close(deviation[span - 1 :], plain.std(1, correction=0), rtol=1e-6, atol=0)
    assert torch.equal(low[span - 1 :], plain.amin(1)) and torch.equal(high[span - 1 :], plain.amax(1) + 1)


def test_an_exponential_mean_weighs_by_age(series: torch.Tensor) -> None:
    weights = 0.9 ** torch.arange(63, -1, -1, dtype=torch.float64)
    expected = (windows(series, 64) * weights).sum(1) / weights.sum()
    torch.testing.assert_close(exponential_mean(series, 0.9, 64)[63:], expected, rtol=1e-13, atol=0)
