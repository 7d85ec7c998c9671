"""The plan of a panel: one calendar, one split by date; what a missing day costs; series that make no
panel.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.planted import panel_job, planted_panel
from tests.jobs import job_of, with_settings
from trainer.bars.document import read_plan
from trainer.bars.panel_plan import plan_panel
from trainer.bars.series_plan import Plan
from trainer.base.errors import DataError, UsageError
from trainer.data.read.candles import Candles
from trainer.data.timeframes import DAY

JOB = with_settings(panel_job("pooled", seed=0), batch=32)
SEEN, AHEAD, WARM, REACH = JOB.model.bars_seen, 1, 14, 20


def series(*drops: Any, bars: int = 200) -> dict[str, Candles]:
    """Return series of the same days, each without some of them."""
    made = {}
    for number, candles in enumerate(planted_panel(0, series=len(drops), dates=bars)):
        random = np.random.default_rng(number)
        close = 50 * np.exp(np.cumsum(random.normal(0, 0.01, bars)))
        keep = np.ones(bars, dtype=bool)
        keep[list(drops[number])] = False
        fields = dict.fromkeys(("open", "high", "low", "close"), close[keep])
        volume = random.lognormal(3, 1, bars)[keep]
        timestamp = (18_262 * DAY + DAY * np.arange(bars, dtype=np.int64))[keep]
        made[candles.symbol] = replace(candles, timestamp=timestamp, volume=volume, **fields)
    return made


def all_bars(plan: Plan) -> set[int]:
    return {int(bar) for bars in plan.bars.values() for bar in bars}


def test_a_missing_day_costs_labels_over_it_and_no_window():
    made = plan_panel(series((), [100]), JOB)
    whole, plan = made["S00"][0], made["S01"][0]
    days = np.delete(np.arange(200), 100)
    assert {int(days[bar]) for bar in all_bars(plan)} == all_bars(whole) - {
        99,
        100,
    }  # 99's label would end on it
    assert plan.rows is not None and plan.rows.tolist() == days.tolist()
    assert plan.starts["train"].tolist() == (plan.rows[plan.bars["train"]] - SEEN + 1).tolist()
    assert plan.time.holes.nonzero()[0].tolist() == [100]


def test_a_panels_calendar_breaks_only_on_long_common_gaps():
    nobody = plan_panel(series([100], [100]), JOB)["S01"][0]
    assert (
        nobody.rows is not None and nobody.rows.tolist() == list(range(199)) and not nobody.time.holes.any()
    )
    week = list(range(100, 107))  # no session for more than five days
    broken = plan_panel(series(week, week), JOB)["S01"][0]
    assert broken.time.holes.nonzero()[0].tolist() == [100]
    lost = all_bars(nobody) - all_bars(broken)
    assert set(range(99, 100 + REACH)) <= lost  # its label, and what looks back over the break


def test_a_window_begins_after_the_warm_up_of_the_series_itself():
    late = plan_panel(series((), range(80)), JOB)["S01"][0]
    first = min(all_bars(late))
    assert (
        first == max(WARM + SEEN - 1, REACH)
        and min(int(rows[0]) for rows in late.starts.values() if len(rows)) >= WARM
    )


def test_a_panel_is_split_on_the_same_dates_without_overlap():
    panel = {one.symbol: one for one in planted_panel(1, series=9, dates=300)}
    job = with_settings(JOB, folds=2, horizon=3, batch=32)
    plans = plan_panel(panel, job)
    for fold in range(2):
        times: dict[str, list[tuple[int, int]]] = {}
        for symbol, made in plans.items():
            for span, bars in made[fold].bars.items():
                if len(bars):
                    first, last = (
                        panel[symbol].timestamp[bars[0]],
                        panel[symbol].timestamp[made[fold].ends[bars].max()],
                    )
                    times.setdefault(span, []).append((int(first), int(last)))
        for older, newer in (("train", "validation"), ("validation", "test")):
            assert max(last for _, last in times[older]) < min(first for first, _ in times[newer])
    assert {len(made[-1].bars["test"]) > 0 for made in plans.values()} == {True, False}  # S05 ended before


def test_a_panels_plan_with_empty_spans_is_written_and_read(planned):
    plan, _ = planned(JOB, *planted_panel(0, series=9, dates=300))
    assert read_plan(plan.to_bytes()) == plan
    assert plan.symbols["S05"].folds[0].bars["test"] == 0 < plan.symbols["S05"].folds[0].bars["train"]


def test_a_short_series_does_not_shorten_the_panels_horizon():
    job = with_settings(JOB, target="volatility", horizon_sessions=0)
    made = plan_panel(series((), (), range(390), bars=400), job)
    (chosen,) = {str(plans[0].target) for plans in made.values()}
    assert chosen == str(plan_panel(series((), (), bars=400), job)["S00"][0].target) and "=1)" not in chosen


def test_series_that_make_no_panel_are_refused(planned):
    panel = series((), (), ())
    shifted = replace(panel["S02"], timestamp=panel["S02"].timestamp - DAY // 2)
    with pytest.raises(
        DataError,
        match=r"S02 has no date in common with another series \(it has 200 bars from 2019-12-31T12.*"
        "; others share dates from 2020-01-01T00:00:00Z to ",
    ):
        plan_panel({**panel, "S02": shifted}, JOB)
    with pytest.raises(DataError, match="the panel has one series, S00"):
        plan_panel({"S00": panel["S00"]}, JOB)
    with pytest.raises(DataError, match="no series of the panel is longer than the warm-up"):
        plan_panel(series((), (), bars=14), JOB)
    with pytest.raises(DataError, match="the panel has no bar left in validation .validation begins at 2020"):
        plan_panel(series((), (), bars=30), JOB)
    with pytest.raises(DataError, match="batch 4096 is larger than the .* training windows of the panel"):
        plan_panel(panel, with_settings(JOB, batch=4096))
    flat = {symbol: replace(one, close=np.arange(1.0, 201.0)) for symbol, one in panel.items()}
    with pytest.raises(DataError, match="the panel has labels of one class only"):
        plan_panel(flat, with_settings(JOB, target="direction"))
    bad = replace(panel["S01"], close=np.where(np.arange(200) == 50, -1.0, panel["S01"].close))
    with pytest.raises(DataError, match="close is not above zero in a bar of S01.* data.exclude=S01"):
        planned(JOB, panel["S00"], bad)


@pytest.mark.parametrize(
    "keys, words",
    [
        ({"pooled": True}, "data.panel and data.pooled"),
        ({"symbols": ("A",)}, "a panel of one symbol"),
        ({"panel": False, "scaler": "rank"}, "data.scaler = rank without a panel"),
        ({"columns": ("present",)}, "'data.columns' has 'present'"),
        ({"scaler": "own"}, "one of pooled, series, rank"),
    ],
)
def test_contradictory_panel_settings_are_refused(keys, words):
    with pytest.raises(UsageError, match=words):
        job_of(**{"panel": True, **keys})
