"""Bars of one series, laid out without a job."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trainer.bars.series_plan import chunk_grid, label_bars, longest_stretch, times_of
from trainer.targets.direction import Direction


def test_a_symbol_is_a_panels_series_without_missing_dates(make_candles):
    candles = make_candles(300, drop=[100, 101, 200])
    alone = times_of(candles.timestamp, "1m", "24x7")
    in_panel = replace(alone, rows=np.arange(len(candles)))
    one, other = (
        label_bars(candles, Direction(horizon=3), time, warmup=10, bars_seen=5) for time in (alone, in_panel)
    )
    assert alone.holes.sum() == 2 and one.bars.tolist() == other.bars.tolist()
    np.testing.assert_array_equal(one.labels_TK, other.labels_TK)


def test_chunks_are_the_grid_cells_with_a_bar():
    assert chunk_grid(np.array([100, 101, 140, 260]), 100, 40).tolist() == [100, 140, 260]


def test_the_longest_stretch_counts_bars_without_a_hole():
    assert longest_stretch(np.array([False, False, True, False, False, False, True])) == 4
