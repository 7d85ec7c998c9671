"""Intervals over cells, and Student's t, beside scipy's."""

from __future__ import annotations

import numpy as np
import pytest

from trainer.targets.inference import FEWEST_CELLS, estimate, num_cosines, t_quantile, t_tail


@pytest.mark.parametrize("freedom", [1, 4, 9, 25, 117, 2000])
def test_students_t_is_scipys(freedom):
    from scipy import stats  # late: each worker of pytest imports this file

    for t in (-30.0, -2.0, -1e-3, 0.0, 1e-3, 0.7, 3.0, 12.0, 200.0):
        assert t_tail(t, freedom) == pytest.approx(stats.t.sf(t, freedom), rel=1e-9, abs=1e-300)
    for share in (0.5, 0.9, 0.975, 0.9999):
        assert t_quantile(share, freedom) == pytest.approx(stats.t.ppf(share, freedom), rel=1e-9, abs=1e-9)


def test_a_mean_far_beyond_its_error_has_no_chance_left():
    """The square of its t is no finite number."""
    assert (t_tail(1e200, 9), t_tail(-1e200, 9)) == (0, 1)


def test_the_error_is_that_of_the_slowest_cosines():
    """Computed again by numpy, from the definition in Lazarus, Lewis, Stock and Watson (2018), section 3."""
    random = np.random.default_rng(0)
    sums, counts = random.normal(size=60) + 3, random.integers(5, 9, 60).astype(float)
    found = estimate(sums.tolist(), counts.tolist())
    mean, number = sums.sum() / counts.sum(), num_cosines(60)
    left = (sums - mean * counts) / counts.mean()
    times = (np.arange(60) + 0.5) / 60
    projected = [np.sqrt(2 / 60) * (np.cos(np.pi * wave * times) @ left) for wave in range(1, number + 1)]
    assert found.value == pytest.approx(mean, rel=1e-12)
    assert found.error == pytest.approx(np.sqrt(np.mean(np.square(projected)) / 60), rel=1e-9)
    assert found.freedom == number == 6


def test_a_cell_twice_as_large_counts_twice():
    values = np.random.default_rng(1).normal(size=200)
    whole = estimate(values.reshape(50, 4).sum(1).tolist(), [4.0] * 50)
    mixed = estimate(
        [*values[:100].reshape(25, 4).sum(1), *values[100:].reshape(50, 2).sum(1)], [4.0] * 25 + [2.0] * 50
    )
    assert whole.value == pytest.approx(values.mean()) and mixed.value == pytest.approx(values.mean())


def test_too_few_cells_have_no_estimate():
    assert estimate([1.0] * (FEWEST_CELLS - 1), [1.0] * (FEWEST_CELLS - 1)) is None
    assert estimate([0.0] * FEWEST_CELLS, [0.0] * FEWEST_CELLS) is None
    same = estimate([1.0] * FEWEST_CELLS, [1.0] * FEWEST_CELLS)
    assert same.value == 1 and same.error == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("sticky", [0.0, 0.7])
def test_a_true_zero_is_found_beyond_chance_as_often_as_stated(sticky):
    """4,000 series of 120 cells, alone or each like the one before; three standard errors of the share."""
    random = np.random.default_rng(2)
    cells = np.empty((4000, 120))
    cells[:, 0] = random.standard_normal(4000)
    for place in range(1, 120):
        cells[:, place] = sticky * cells[:, place - 1] + np.sqrt(1 - sticky**2) * random.standard_normal(4000)
    found = [estimate(row, [1.0] * 120).p_positive for row in cells.tolist()]
    assert np.mean(np.array(found) < 0.05) == pytest.approx(0.05, abs=0.011 if sticky == 0 else 0.035)
