from __future__ import annotations

import numpy as np
import pytest

from trainer.data.rolling import (
    change,
    exponential_mean,
    lag,
    last,
    rolling_ages,
    rolling_correlation,
    rolling_extremes,
    rolling_moments,
    rolling_sum,
)

SPANS = (1, 2, 3, 5, 15, 60, 240)


@pytest.fixture(scope="module")
def series() -> np.ndarray:
    return np.random.default_rng(0).normal(0, 1, 700).cumsum() + 1e6


def windows(series: np.ndarray, span: int) -> np.ndarray:
    return np.lib.stride_tricks.sliding_window_view(series, span)


def test_series_are_aligned_at_their_end() -> None:
    x = np.array([1.0, 2.0, 4.0])
    assert lag(x, 1).tolist() == [1.0, 2.0] and lag(x, 0).tolist() == x.tolist()
    assert last(x, 2).tolist() == [2.0, 4.0] and change(x, 2).tolist() == [3.0]


@pytest.mark.parametrize("span", SPANS)
def test_rolling_values_equal_those_of_each_window(series: np.ndarray, span: int) -> None:
    plain = windows(series, span)
    mean, deviation = rolling_moments(series, SPANS)[span]
    low, high = rolling_extremes(series, series + 1, SPANS)[span]
    np.testing.assert_allclose(rolling_sum(series, SPANS)[span], plain.sum(1), rtol=1e-14, atol=0)
    np.testing.assert_allclose(mean, plain.mean(1), rtol=1e-14, atol=0)
    np.testing.assert_allclose(deviation, plain.std(1), rtol=1e-6, atol=0)
    assert np.array_equal(low, plain.min(1)) and np.array_equal(high, plain.max(1) + 1)


def test_the_age_of_the_greatest_value_is_that_of_the_latest() -> None:
    series = np.random.default_rng(1).integers(0, 4, 200).astype(np.float64)
    greatest, age = rolling_ages(series, 13)
    plain = windows(series, 13)
    assert np.array_equal(greatest, plain.max(1))
    assert np.array_equal(age, plain[:, ::-1].argmax(1))


def test_the_correlation_is_that_of_each_window(series: np.ndarray) -> None:
    other = series[::-1] + np.random.default_rng(2).normal(0, 1, 700)
    made = rolling_correlation(series, other, 60)
    expected = [np.corrcoef(x, y)[0, 1] for x, y in zip(windows(series, 60), windows(other, 60), strict=True)]
    np.testing.assert_allclose(made, expected, rtol=1e-9, atol=1e-9)
    assert (rolling_correlation(series, np.ones_like(series), 60) == 0).all()


def test_an_exponential_mean_weighs_by_age(series: np.ndarray) -> None:
    weights = 0.9 ** np.arange(63.0, -1, -1)
    expected = (windows(series, 64) * weights).sum(1) / weights.sum()
    np.testing.assert_allclose(exponential_mean(series, 0.9, 64), expected, rtol=1e-13, atol=0)
