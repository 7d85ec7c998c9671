from __future__ import annotations

import numpy as np
import pytest

from trainer.data.read.oddities import oddities

MINUTE = 60 * 10**9


@pytest.mark.filterwarnings(
    "error::RuntimeWarning"
)  # not every kind: one may be about an earlier test's garbage
def test_prices_whose_ratio_no_float_holds_are_odd_and_no_warning_of_numpys():
    close_N = np.repeat([1e300, 1e-300], 20)
    high_N, low_N = close_N.copy(), close_N.copy()
    high_N[30], low_N[5] = 1e300, 1e-300
    notes = oddities("A", "1m", np.arange(40) * MINUTE, np.array([close_N, high_N, low_N, close_N]))
    assert [note.text.split(" ")[0] for note in notes] == ["high", "close"]
