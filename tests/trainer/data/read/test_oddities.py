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
