"""Ranks among the series that are present on a date."""

from __future__ import annotations

import math

import numpy as np

from trainer.data.ranks import UNIT, ranks


def test_ranks_are_among_present_values_and_ties_share_one():
    nan = math.nan
    found = (
        ranks(np.array([[3.0, 1.0, 2.0, 9.0], [5.0, nan, 5.0, 1.0], [nan, nan, 7.0, nan], [nan] * 4])) / UNIT
    )
    expected = [[1 / 8, -3 / 8, -1 / 8, 3 / 8], [1 / 6, nan, 1 / 6, -1 / 3], [nan, nan, 0.0, nan], [nan] * 4]
    np.testing.assert_allclose(found, expected)


def test_ranks_have_mean_zero_and_independent_dates():
    values_DS = np.random.default_rng(0).standard_normal((5, 500))
    found = ranks(values_DS)
    assert np.allclose(found.mean(axis=1), 0) and np.allclose(found.std(axis=1), 1, atol=1e-3)
    values_DS[3:] = 0
    assert np.array_equal(ranks(values_DS)[:3], found[:3])
