"""Plans whose horizon is chosen by the series, for a model that reads chunks and a volatility: labels, spans,
chunks.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.jobs import job_of, with_settings
from trainer.bars.series_plan import count_separate
from trainer.bars.symbol_plan import plan_symbol
from trainer.base.errors import DataError, UsageError
from trainer.data.feature_names import WARMUP
from trainer.data.read.reading import read_candles
from trainer.data.timeframes import DAY
from trainer.models import MODELS, OWN
from trainer.train.inputs.rows import prepare

RAW = Path(__file__).parents[4] / "shared" / "data" / "raw"
SMALL = job_of(model="tcn", blocks=3, width=4, chunk=64)  # sees 29 bars
BARS = 12 * 220  # of two hours: 220 sessions


def last_bars(plan, span):
    return plan.starts[span] + SMALL.model.bars_seen - 1


def test_no_chosen_label_crosses_into_another_span(make_candles):
    plan = plan_symbol(make_candles(BARS, timeframe="2h"), SMALL)
    spans = dict(plan.spans.items())
    for name, span in spans.items():
        bars = last_bars(plan, name)
        assert bars.min() >= span.start and plan.ends[bars].max() < span.stop
    assert (
        spans["validation"].start - spans["train"].stop
        >= plan.horizon_bars
        == 12 * plan.target.horizon_sessions
    )
    assert spans["test"].start - spans["validation"].stop >= plan.horizon_bars
    assert last_bars(plan, "train").min() == WARMUP + SMALL.model.bars_seen - 1


@pytest.mark.parametrize(("bars", "sessions"), [(BARS, 1), (2 * BARS, 3), (33_000, 20), (60_000, 21)])
def test_the_longest_horizon_with_twenty_test_labels_is_chosen(make_candles, bars, sessions):
    plan = plan_symbol(
        make_candles(bars, timeframe="2h"), SMALL
    )  # test has 0.15 x (bars - WARMUP) / 12 sessions
    assert plan.target.horizon_sessions == sessions
    assert count_separate(last_bars(plan, "test"), plan.ends) >= 20


def test_thirty_days_ahead_on_an_hourly_coin(make_candles):
    """The plan, the labels by hand, the cells of a score and every baseline of a horizon of 30 days."""
    job = with_settings(SMALL, horizon_sessions=30, chunk=512)
    candles = make_candles(24 * 1200, timeframe="1h", symbol="BTC-USD")
    plan = plan_symbol(candles, job)
    assert plan.horizon_bars == 720
    spans = dict(plan.spans.items())
    assert spans["test"].start - spans["validation"].stop >= 720  # no label reaches into the next span
    data = prepare(candles, job, plan=plan)
    assert data.calendar == "24x7"
    squares = np.diff(np.log(candles.close), prepend=np.nan) ** 2
    for bar in (data.bars("train")[0], data.bars("test")[-1]):
        by_hand = np.log(np.sqrt(squares[bar + 1 : bar + 721].sum()))
        assert data.labels_TK[bar, 0] == pytest.approx(by_hand, rel=1e-5)
    cells, words = data.target.cells(data.scored("test"))
    assert words == "30 sessions" and len(np.unique(cells)) in (5, 6, 7)  # of about 180 days of test
    for name, forecast in data.target.baselines(data.scored("test")).items():
        assert np.isfinite(forecast).all(), name
    with pytest.raises(UsageError, match="target.horizon_sessions"):
        with_settings(SMALL, horizon_sessions=64)


def test_a_test_span_below_a_session_names_the_bars_needed(make_candles):
    candles = make_candles(3 * 1440, timeframe="1m")
    with pytest.raises(DataError) as caught:
        plan_symbol(candles, SMALL)
    assert "looks whole sessions ahead, and no such label fits into test" in caught.value.why
    assert "horizon_sessions = 1" not in caught.value.do
    needed = int(re.search(r"about ([0-9,]+)\)", caught.value.do)[1].replace(",", ""))
    assert plan_symbol(make_candles(needed, timeframe="1m"), SMALL).target.horizon_sessions >= 1


def test_a_series_with_holes_needs_no_more_bars_than_it_has(make_candles):
    candles = make_candles(200, timeframe="1d", drop=range(9, 200, 21))
    job = job_of(target="volatility", lookback=5, features=["log_return_5"], timeframe="1d", calendar="24x7")
    with pytest.raises(DataError, match="labels in test that don't overlap") as refused:
        plan_symbol(candles, job)
    needed = re.search(r"about ([\d,]+)", str(refused.value))
    assert needed and int(needed[1].replace(",", "")) > len(candles)


def test_too_few_sessions_are_refused_unless_the_horizon_is_set(make_candles):
    candles = make_candles(BARS // 2, timeframe="2h")
    with pytest.raises(DataError, match=r"raise data.test_fraction.*horizon_sessions = 1"):
        plan_symbol(candles, SMALL)
    with pytest.raises(DataError, match=r"raise data.test_days, "):
        plan_symbol(candles, with_settings(SMALL, validation_days=5, test_days=5))
    plan = plan_symbol(candles, with_settings(SMALL, horizon_sessions=1))
    assert count_separate(last_bars(plan, "test"), plan.ends) < 20


def test_a_series_shorter_than_the_models_reach_is_refused(make_candles):
    with pytest.raises(DataError, match="lower model.blocks or model.dilation_cap"):
        plan_symbol(make_candles(WARMUP + 20, timeframe="2h"), SMALL)


@pytest.mark.parametrize("home", [*MODELS.values(), OWN], ids=lambda home: home.name)
def test_the_keys_that_shorten_a_models_reach_fit_a_sentence(home):
    assert home.shorter[0].islower() and not home.shorter.endswith((",", "."))


def test_no_bar_has_a_hole_in_what_it_sees_or_in_its_label(make_candles):
    gone = 1000
    plan = plan_symbol(make_candles(BARS, timeframe="2h", drop=[gone]), SMALL)
    bars = last_bars(plan, "train")
    near = bars[(bars > gone - 60) & (bars < gone + 60)]  # bar `gone` is now the first after the hole
    assert near[near < gone].max() + 12 < gone
    assert near[near >= gone].min() - SMALL.model.bars_seen + 1 == gone + 1


def test_bars_without_a_later_move_are_ties(make_candles):
    candles = make_candles(BARS, timeframe="2h")
    close = candles.close.copy()
    close[800:820] = close[800]
    plan = plan_symbol(replace(candles, close=close), SMALL)
    assert plan.ties == 8  # bars 800 to 807, whose twelve next bars all close alike
    assert not np.isin(np.arange(800, 808), last_bars(plan, "train")).any()


def test_training_labels_are_scaled_by_the_training_span(make_candles):
    candles = make_candles(BARS, timeframe="2h")
    data = prepare(candles, SMALL)
    labelled = np.flatnonzero(np.isfinite(data.train_labels_TK.numpy()[:, 0]))
    bars = data.starts["train"].numpy() + SMALL.model.bars_seen - 1
    assert labelled.tolist() == bars.tolist()
    scaled = data.train_labels_TK.numpy()[:, 0][bars]
    assert scaled.mean() == pytest.approx(0, abs=1e-5) and scaled.std() == pytest.approx(1, abs=1e-5)
    np.testing.assert_allclose(
        scaled * data.fitted["label_std"] + data.fitted["label_mean"], data.labels_TK[bars, 0], rtol=1e-5
    )
    covered = np.concatenate(
        [start + SMALL.model.bars_seen - 1 + np.arange(SMALL.model.chunk) for start in data.reads.numpy()]
    )
    assert np.isin(bars, covered).all() and len(np.unique(covered)) == len(covered)


@pytest.mark.skipif(not RAW.is_dir(), reason=f"no real candles at {RAW}")
@pytest.mark.parametrize(
    ("symbol", "timeframe", "sessions", "horizon"),
    [("SPY", "1m", 256, 1), ("SPY", "1h", 5849, 21), ("ES", "tick2800", 509, 5)],
)
def test_real_series_have_their_known_sessions(symbol, timeframe, sessions, horizon):
    candles = read_candles(RAW, symbols=(symbol,), timeframe=timeframe)[symbol]
    plan = plan_symbol(candles, job_of(model="tcn"))
    assert (plan.time.clock[-1] // DAY + 1, plan.target.horizon_sessions) == (sessions, horizon)
