"""Bars of one series, laid out without a job."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trainer.bars import series_plan
from trainer.bars.series_plan import BarTimes, chunk_grid, label_bars, longest_stretch, times_of
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


def test_parts_of_a_long_series_are_laid_out_as_one(make_candles, monkeypatch):
    candles = make_candles(300, drop=[100, 101, 200])
    time = times_of(candles.timestamp, "1m", "24x7")

    def bars(time: BarTimes) -> list[int]:
        return label_bars(candles, Direction(horizon=3), time, warmup=10, bars_seen=5).bars.tolist()

    whole, in_panel = bars(time), replace(time, rows=np.arange(len(candles)))
    monkeypatch.setattr(series_plan, "PART", 7)
    assert bars(time) == bars(in_panel) == whole and len(whole) < 300 - 14


def test_bars_are_readable_after_warm_up_and_the_targets_reach(make_candles):
    time = times_of(make_candles(30).timestamp, "1m", "24x7")
    assert time.readable(warmup=2, bars_seen=3, reach=0)[0] == 4
    assert time.readable(warmup=2, bars_seen=3, reach=9)[0] == 9
    in_panel = replace(time, rows=np.array([0, 1, *range(5, 33)]), breaks=np.zeros(33, dtype=bool))
    assert in_panel.rows_of(in_panel.readable(warmup=2, bars_seen=3, reach=0))[0] == 5 + 2
    assert in_panel.first_row(warmup=30, bars_seen=3) == 33 + 2  # no bar is past the warm-up


def test_chunks_are_the_grid_cells_with_a_bar():
    assert chunk_grid(np.array([100, 101, 140, 260]), 100, 40).tolist() == [100, 140, 260]


def test_the_longest_stretch_counts_bars_without_a_hole():
    assert longest_stretch(np.array([False, False, True, False, False, False, True])) == 4
