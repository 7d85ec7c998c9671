"""Jumps of a volume's level, by hand."""

from __future__ import annotations

import numpy as np

from trainer.data.read.volumes import level_changes

HOUR = 3_600_000_000_000


def test_the_first_day_counts_before_1970_too():
    timestamp = np.arange(12 * 24) * HOUR - 24 * HOUR  # from 1969-12-31 on
    volume = np.where(np.arange(len(timestamp)) < 5 * 24, 1.0, 1_000.0)
    assert level_changes(timestamp, volume, "1h") == [(5 * 24, 3.0)]
