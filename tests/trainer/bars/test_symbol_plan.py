"""Spans, holes, labels and valid bars of hand-made series, for a model that reads windows and a direction."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest

from tests.jobs import job_of, with_settings
from trainer.bars.symbol_plan import plan_folds, plan_symbol
from trainer.base.errors import DataError
from trainer.data.read.candles import Candles
from trainer.data.timeframes import DAY
from trainer.job.job import Job

JOB = job_of(lookback=4, horizon=2, validation_fraction=0.2, test_fraction=0.2)


def test_windows_of_a_series_without_holes_fill_their_spans(make_candles) -> None:
    plan = plan_symbol(make_candles(100), JOB, warmup=10)
    # 90 bars after the warm-up: 54 train, 18 validation, 18 test, and 2 bars of embargo taken from each older
    # span.
    assert [(span.start, span.stop) for _, span in plan.spans.items()] == [(10, 62), (64, 80), (82, 100)]
    assert plan.starts["train"].tolist() == list(range(10, 62 - 2 - 4 + 1))
    assert plan.starts["validation"].tolist() == list(range(64 - 3, 80 - 2 - 4 + 1))
    assert plan.starts["test"].tolist() == list(range(82 - 3, 100 - 2 - 4 + 1))
    assert all(starts.dtype == np.int64 for starts in plan.starts.values())


def test_no_label_of_a_span_reaches_the_next_span(make_candles) -> None:
    for job in (JOB, job_of(lookback=4, horizon=9, embargo=3), job_of(lookback=4, horizon=2, embargo=30)):
        plan = plan_symbol(make_candles(2000), job, warmup=10)
        spans = [span for _, span in plan.spans.items()]
        for (name, span), later in zip(plan.spans.items(), [*spans[1:], None], strict=True):
            ends = plan.starts[name] + job.model.lookback - 1 + job.target.horizon
            assert ends.max() < span.stop
            assert later is None or later.start - span.stop >= max(job.data.embargo, job.target.horizon)


def test_no_window_and_no_label_crosses_a_hole(make_candles) -> None:
    drop = np.random.default_rng(1).choice(np.arange(1, 1999), 60, replace=False)
    candles = make_candles(2000, drop=drop)
    plan = plan_symbol(candles, JOB, warmup=10)
    step = int(timedelta(minutes=1).total_seconds() * 1e9)
    expected: dict[str, list[int]] = {"train": [], "validation": [], "test": []}
    for start in range(10, len(candles)):  # the rule in plain words, bar by bar
        last = start + JOB.model.lookback - 1
        for name, span in plan.spans.items():
            if span.start <= last and last + JOB.target.horizon < span.stop:
                times = candles.timestamp[start - 1 : last + JOB.target.horizon + 1]
                if (np.diff(times) == step).all() and candles.close[
                    last + JOB.target.horizon
                ] != candles.close[last]:
                    expected[name].append(start)
    assert {name: starts.tolist() for name, starts in plan.starts.items()} == expected
    assert plan.time.holes.sum() == (np.diff(candles.timestamp) > step).sum()
    assert np.isnan(plan.labels_TK[np.flatnonzero(plan.time.holes) - 1]).all()  # a label over a hole is none


def test_ties_are_dropped_and_counted(make_candles) -> None:
    close = 100 + np.cumsum(np.random.default_rng(0).choice([-1.0, 1.0], 400))
    close[150:160] = 100.0  # eight windows end in 150..157 with the same close two bars later
    plan = plan_symbol(make_candles(400, close=close), JOB, warmup=10)
    last = {name: starts + JOB.model.lookback - 1 for name, starts in plan.starts.items()}
    assert not set(range(150, 158)) & set(last["train"].tolist())
    whole = sum(
        len(span) - JOB.target.horizon - (JOB.model.lookback - 1 if name == "train" else 0)
        for name, span in plan.spans.items()
    )
    assert plan.ties == whole - sum(len(rows) for rows in last.values()) > 8


def test_the_calendar_of_the_job_wins_over_the_guess(make_candles) -> None:
    candles = make_candles(1000, drop=range(200, 500))
    assert plan_symbol(candles, JOB, warmup=10).time.calendar == "24x7"
    plan = plan_symbol(candles, job_of(lookback=4, horizon=2, calendar="events"), warmup=10)
    assert (plan.time.calendar, int(plan.time.holes.sum())) == ("events", 0)


def test_too_few_bars_are_refused_with_the_arithmetic(make_candles) -> None:
    words = (
        "AAA has 320 bars .one label needs 321: 256 that log_atr_14 looks back, 60 that the model sees, 5 or"
        " more ahead"
    )
    with pytest.raises(DataError, match=words):
        plan_symbol(make_candles(320), Job())


def test_an_empty_span_is_refused_with_the_longest_stretch(make_candles) -> None:
    candles = make_candles(1000, drop=range(0, 1000, 6))
    with pytest.raises(
        DataError, match="no bar left in train .*24x7 .*longest unbroken stretch is 5 bars.*set data.calendar"
    ):
        plan_symbol(candles, JOB, warmup=10)


def test_a_span_too_short_for_a_label_is_not_refused_for_holes(make_candles) -> None:
    job = job_of(target="volatility", horizon_sessions=1, lookback=4, features=["log_return_5"])
    told = "of 804 bars 273 are left for it, with 288 before the next span.*a label 288 more.*Give more bars"
    with pytest.raises(DataError, match=f"no bar left in train .{told}") as refused:
        plan_symbol(make_candles(804, timeframe="5m"), job)
    assert "calendar" not in str(refused.value)


def test_event_bars_are_split_by_days(make_candles) -> None:
    candles = replace(make_candles(10_000), timeframe="tick2800")
    job = job_of(lookback=4, horizon=2, features=["log_return_5"], timeframe="tick2800")
    plan = plan_symbol(candles, with_settings(job, validation_days=1, test_days=2))
    days = {name: np.unique(candles.timestamp[bars] // DAY) for name, bars in plan.bars.items()}
    assert (len(days["train"]), len(days["validation"]), len(days["test"])) == (4, 1, 2)


def test_prices_that_never_move_leave_only_ties(make_candles) -> None:
    with pytest.raises(DataError, match="no bar left in train .*does not move.*Raise target.horizon"):
        plan_symbol(make_candles(500, close=[5.0] * 500), JOB, warmup=10)


def test_one_class_only_is_refused(make_candles) -> None:
    rising = np.arange(1.0, 501.0)
    for close, moves in ((rising, "rises"), (rising[::-1], "falls")):
        with pytest.raises(DataError, match=f"one class only.*every close {moves} over 2 bars"):
            plan_symbol(make_candles(500, close=close), JOB, warmup=10)


def test_a_year_of_daily_bars_is_enough_for_daily_features(make_candles) -> None:
    candles = make_candles(328, timeframe="1d")
    plan = plan_symbol(candles, job_of(timeframe="1d"))
    assert plan.warmup == 60 and min(len(bars) for bars in plan.bars.values()) > 20
    with pytest.raises(
        DataError, match=r"no bar left in validation .of 328 bars the first 256 are the warm-up of log_atr_14"
    ):
        plan_symbol(candles, job_of(timeframe="1d", features="all", lookback=20, horizon=12))


# --- further columns
# ---------------------------------------------------------------------------------------------------


def with_column(candles: Candles, *, first: int) -> Candles:
    return replace(candles, columns={"funding": np.where(np.arange(len(candles)) < first, np.nan, 1.0)})


@pytest.mark.parametrize(
    ("features", "first", "warmup"), [("all", 100, 256), ("all", 300, 300), ("none", 0, 0), ("none", 7, 7)]
)
def test_bars_before_a_columns_first_value_are_warm_up(make_candles, features, first, warmup) -> None:
    job = with_settings(JOB, columns="funding", features=features)
    plan = plan_symbol(with_column(make_candles(1000), first=first), job)
    assert plan.warmup == plan.spans.train.start == plan.starts["train"][0] == warmup
    folded = plan_folds(with_column(make_candles(1000), first=first), with_settings(job, folds=2, batch=8))
    assert {fold.starts["train"][0] for fold in folded} == {warmup}


def test_a_chunk_reads_no_row_before_a_columns_first_value(make_candles) -> None:
    job = job_of(
        model="tcn", target="direction", width=8, blocks=2, chunk=16, columns="funding", features="none"
    )
    plan = plan_symbol(with_column(make_candles(1000), first=40), job)
    assert plan.chunks[0] - plan.bars_seen + 1 == 40


def test_empty_and_late_columns_are_refused(make_candles) -> None:
    job = with_settings(JOB, columns="funding", features="none")
    with pytest.raises(DataError, match="AAA has no value of funding .every cell of the column is empty"):
        plan_symbol(with_column(make_candles(100), first=100), job)
    with pytest.raises(DataError, match="of 300 bars the first 290 come before the columns' first values"):
        plan_symbol(with_column(make_candles(300), first=290), job)
    with pytest.raises(
        DataError, match="one label needs 105: 99 before the columns' first values, 4 that the model sees"
    ):
        plan_symbol(with_column(make_candles(100), first=99), job)
