"""Labels of realized volatility on hand-made series: what they are, what they may not see, and which bars have one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from trainer.config import Job
from trainer.data.candles import read_candles
from trainer.data.feature_names import WARMUP
from trainer.data.streams import prepare_stream
from trainer.data.timeframes import DAY
from trainer.data.volatility import (
    chunk_grid,
    count_separate,
    label_sessions,
    plan_volatility,
    squared_returns,
    trailing_volatility,
)
from trainer.errors import DataError

RAW = Path(__file__).parents[4] / "shared" / "data" / "raw"
SMALL = Job(model="tcn", blocks=3, width=4, chunk=64)  # sees 29 bars
BARS = 12 * 220  # of two hours: 220 sessions


def last_bars(plan, span):
    return plan.starts[span] + SMALL.bars_seen - 1


def test_a_label_is_the_root_of_the_squared_returns_up_to_the_same_time_of_the_next_session():
    clock = np.array([0, 1, 2, DAY, DAY + 1, DAY + 2, 2 * DAY])  # three bars a session
    moves = np.array([0.01, -0.02, 0.03, 0.04, -0.05, 0.06])
    close = 100 * np.exp(np.concatenate([[0.0], np.cumsum(moves)]))
    labels, ends = label_sessions(close, clock, 1)
    assert ends.tolist() == [3, 4, 5, 6, -1, -1, -1]
    expected = [np.log(np.sqrt(np.sum(moves[bar : bar + 3] ** 2))) for bar in range(4)]
    np.testing.assert_allclose(labels[:4], expected, rtol=1e-6)
    assert np.isnan(labels[4:]).all()


def test_a_session_that_closed_early_ends_the_label_with_its_last_bar():
    clock = np.array([0, 1, 2, DAY, 2 * DAY, 2 * DAY + 1])  # the second session has one bar
    _, ends = label_sessions(np.exp(0.01 * np.arange(6.0)), clock, 1)
    assert ends.tolist() == [3, 3, 3, 4, -1, -1]


def test_a_label_sees_prices_after_its_bar_only_and_the_trailing_volatility_those_before_it(make_candles):
    candles = make_candles(600, timeframe="2h")
    clock = DAY * (np.arange(600) // 12) + np.arange(600) % 12
    bar = 300
    for altered, changed, same in (
        (slice(0, bar), trailing_volatility, lambda *given: label_sessions(*given)[0]),
        (slice(bar + 1, None), lambda *given: label_sessions(*given)[0], trailing_volatility),
    ):
        close = candles.close.copy()
        close[altered] *= np.exp(np.random.default_rng(1).normal(0, 0.05, len(close[altered])))
        # Sums run through the whole series: what does not depend on a price moves by rounding alone.
        assert same(close, clock, 2)[bar] == pytest.approx(same(candles.close, clock, 2)[bar], rel=1e-5)
        assert abs(changed(close, clock, 2)[bar] - changed(candles.close, clock, 2)[bar]) > 0.1


def test_trailing_volatility_begins_where_the_series_reaches_far_enough_back():
    clock = DAY * (np.arange(60) // 12) + np.arange(60) % 12
    known = np.isfinite(trailing_volatility(np.exp(np.sin(np.arange(60.0))), clock, 2))
    assert known.tolist() == [False] * 24 + [True] * 36


def test_no_label_crosses_into_another_span_and_the_embargo_is_as_long_as_a_label(make_candles):
    plan = plan_volatility(make_candles(BARS, timeframe="2h"), SMALL)
    spans = dict(plan.spans.items())
    for name, span in spans.items():
        bars = last_bars(plan, name)
        assert bars.min() >= span.start and plan.ends[bars].max() < span.stop
    assert spans["validation"].start - spans["train"].stop >= plan.horizon_bars == 12 * plan.horizon_sessions
    assert spans["test"].start - spans["validation"].stop >= plan.horizon_bars
    assert last_bars(plan, "train").min() == WARMUP + SMALL.bars_seen - 1


@pytest.mark.parametrize(("bars", "sessions"), [(BARS, 1), (2 * BARS, 3), (33_000, 20), (60_000, 21)])
def test_the_horizon_is_the_longest_that_leaves_twenty_separate_labels_in_test(make_candles, bars, sessions):
    plan = plan_volatility(make_candles(bars, timeframe="2h"), SMALL)  # test has 0.15 x (bars - WARMUP) / 12 sessions
    assert plan.horizon_sessions == sessions
    assert count_separate(last_bars(plan, "test"), plan.ends) >= 20


def test_too_few_sessions_are_an_error_that_names_the_setting_which_goes_on_all_the_same(make_candles):
    candles = make_candles(BARS // 2, timeframe="2h")
    with pytest.raises(DataError, match="horizon_sessions = 1"):
        plan_volatility(candles, SMALL)
    plan = plan_volatility(candles, replace(SMALL, horizon_sessions=1))
    assert count_separate(last_bars(plan, "test"), plan.ends) < 20


def test_a_series_shorter_than_what_the_model_sees_says_how_long_it_must_be(make_candles):
    with pytest.raises(DataError, match="lower blocks or dilation_cap"):
        plan_volatility(make_candles(WARMUP + 20, timeframe="2h"), SMALL)


def test_no_bar_has_a_hole_in_what_it_sees_or_in_its_label(make_candles):
    gone = 1000
    plan = plan_volatility(make_candles(BARS, timeframe="2h", drop=[gone]), SMALL)
    bars = last_bars(plan, "train")
    near = bars[(bars > gone - 60) & (bars < gone + 60)]  # bar `gone` is now the first after the hole
    assert near[near < gone].max() + 12 < gone
    assert near[near >= gone].min() - SMALL.bars_seen + 1 == gone + 1


def test_bars_after_which_nothing_moves_are_counted_and_left_out(make_candles):
    candles = make_candles(BARS, timeframe="2h")
    close = candles.close.copy()
    close[800:820] = close[800]
    plan = plan_volatility(replace(candles, close=close), SMALL)
    assert plan.ties == 8  # bars 800 to 807, whose twelve next bars all close alike
    assert not np.isin(np.arange(800, 808), last_bars(plan, "train")).any()


def test_chunks_are_those_of_a_grid_that_hold_a_bar():
    assert chunk_grid(np.array([100, 101, 140, 260]), first=100, chunk=40).tolist() == [100, 140, 260]


def test_training_labels_are_scaled_by_training_alone_and_are_nowhere_else(make_candles):
    candles = make_candles(BARS, timeframe="2h")
    data = prepare_stream(candles, SMALL)
    labelled = np.flatnonzero(np.isfinite(data.train_labels_T.numpy()))
    bars = data.starts["train"].numpy() + SMALL.bars_seen - 1
    assert labelled.tolist() == bars.tolist()
    scaled = data.train_labels_T.numpy()[bars]
    assert scaled.mean() == pytest.approx(0, abs=1e-5) and scaled.std() == pytest.approx(1, abs=1e-5)
    np.testing.assert_allclose(scaled * data.label_std + data.label_mean, data.labels_T.numpy()[bars], rtol=1e-5)
    covered = np.concatenate([start + SMALL.bars_seen - 1 + np.arange(SMALL.chunk) for start in data.chunk_starts.numpy()])
    assert np.isin(bars, covered).all() and len(np.unique(covered)) == len(covered)


def test_the_total_of_squared_returns_starts_at_nothing():
    np.testing.assert_allclose(squared_returns(np.exp(np.array([0.0, 0.1, -0.1]))), [0.0, 0.01, 0.05])


@pytest.mark.skipif(not RAW.is_dir(), reason=f"no real candles at {RAW}")
@pytest.mark.parametrize(
    ("symbol", "timeframe", "sessions", "horizon"), [("SPY", "1m", 256, 1), ("SPY", "1h", 5849, 21), ("ES", "tick2800", 509, 5)]
)
def test_real_series_have_the_sessions_that_are_known_of_them(symbol, timeframe, sessions, horizon):
    candles = read_candles(RAW, symbols=(symbol,), timeframe=timeframe).symbols[symbol]
    plan = plan_volatility(candles, Job(model="tcn"))
    assert (plan.clock[-1] // DAY + 1, plan.horizon_sessions) == (sessions, horizon)
