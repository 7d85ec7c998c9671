"""Implausible bars."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from trainer.data.read.oddities import oddities


@pytest.mark.filterwarnings("error::RuntimeWarning")  # not every kind: one may be about an earlier test
def test_a_ratio_that_no_float_holds_is_odd_without_a_warning(make_candles):
    close_N = np.repeat([1e300, 1e-300], 20)
    high_N, low_N = close_N.copy(), close_N.copy()
    high_N[30], low_N[5] = 1e300, 1e-300
    candles = replace(make_candles(40), open=close_N, high=high_N, low=low_N, close=close_N)
    assert [note.text.split(" ")[0] for note in oddities(candles)] == ["high", "close"]


@pytest.mark.parametrize(
    ("ratio", "noted"), [(1.5, "3:2"), (1.25, "5:4"), (2 / 3, "2:3"), (2.0, "2:1"), (1.35, ""), (1.15, "")]
)
def test_a_split_of_three_for_two_is_noted_by_its_ratio(make_candles, ratio, noted):
    close_N = np.repeat([150.0, 150.0 / ratio], 20)
    candles = replace(make_candles(40), open=close_N, high=close_N, low=close_N, close=close_N)
    found = [note.detail for note in oddities(candles) if "split" in note.text]
    assert [detail.partition(" at ")[0] for detail in found] == [noted] * bool(noted)


@pytest.mark.parametrize(
    ("late", "noted"), [(0, False), (3_599_000_000_000, True), (3_599_999_000_000, True)]
)
def test_times_of_the_ends_of_bars_are_noted(make_candles, late, noted):
    candles = make_candles(40, timeframe="1h")
    begins = candles.timestamp // 3_600_000_000_000 * 3_600_000_000_000
    texts = [note.text for note in oddities(replace(candles, timestamp=begins + late))]
    assert any("the last second of a bar" in text for text in texts) is noted
