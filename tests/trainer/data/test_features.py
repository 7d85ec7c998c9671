from __future__ import annotations

import gc
import tracemalloc
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

from trainer.data.feature_names import LOOKBACK, in_order, lookback_of
from trainer.data.feature_table import TABLE
from trainer.data.features import FEATURES, WARMUP, compute_inputs
from trainer.data.formulas import FORMULAS, clock
from trainer.data.formulas.shared import FeatureBars

CUT = 700
EVERY = tuple(TABLE)
# Each longer timeframe with what has its lookback in 3,500 bars of a minute.
_SHORT = ("log_return_1", "bar_body", "bar_range", "lower_wick")
LONGER = in_order(
    [
        *(f"{name}@5m" for name, one in TABLE.items() if not one.is_of_clock),
        *(f"{name}@15m" for name, one in TABLE.items() if not one.is_of_clock and one.lookback < 62),
        *(f"{name}@{frame}" for frame in ("1h", "4h") for name in _SHORT),
        *(f"{name}@1d" for name in _SHORT[1:]),
    ]
)


@pytest.fixture
def candles(make_candles):
    return make_candles(1500, drop=[400, 401, 402])


def column(rows: torch.Tensor, name: str) -> np.ndarray:
    return rows[:, FEATURES.index(name)].numpy()


def test_there_are_at_least_thirty_features_of_different_names(candles) -> None:
    rows = compute_inputs(candles)
    assert len(FEATURES) == len(set(FEATURES)) >= 30
    assert (
        rows.shape == (len(candles), len(FEATURES)) and rows.dtype == torch.float32 and rows.is_contiguous()
    )
    assert torch.isfinite(rows).all()


def changed_after(candles, cut: int, random: np.random.Generator):
    """Return the bars with every one after `cut` changed beyond recognition."""
    late = np.arange(len(candles)) > cut
    noise = np.exp(random.normal(0, 2, len(candles)))
    changed = {
        name: np.where(late, getattr(candles, name) * noise, getattr(candles, name))
        for name in ("open", "close", "low")
    }
    changed["high"] = np.where(late, np.maximum(changed["open"], changed["close"]) * 5, candles.high)
    changed["low"] = np.minimum(changed["low"], changed["high"])
    changed["volume"] = np.where(late, candles.volume * noise[::-1] * 100, candles.volume)
    changed["timestamp"] = candles.timestamp + np.where(late, 7_777_000_000_000, 0)
    return replace(candles, **changed)


@pytest.mark.parametrize(("features", "bars"), [(EVERY, 1500), (LONGER, 3500)], ids=["own bars", "longer"])
def test_no_feature_looks_ahead(make_candles, features, bars: int) -> None:
    """Every bar after t changed beyond recognition: not one bit of a feature at t or before changes."""
    candles = make_candles(bars, drop=[400, 401, 402])
    random = np.random.default_rng(5)
    before = compute_inputs(candles, features=features)
    for cut in (WARMUP, CUT, len(candles) - 2):
        after = compute_inputs(changed_after(candles, cut, random), features=features)
        assert torch.equal(before[: cut + 1], after[: cut + 1])
        assert not torch.equal(before[cut + 1 :], after[cut + 1 :])


def test_every_feature_sees_its_own_bar_or_the_past(candles) -> None:
    """The perturbation test means something only if each feature moves when its inputs do."""
    moved = replace(
        candles,
        close=candles.close + 50,
        open=candles.open + 20,
        high=candles.high + 99 + candles.high[::-1],
        volume=candles.volume[::-1].copy(),
    )
    one, other = (compute_inputs(bars, features=EVERY) for bars in (candles, moved))
    same = {name for place, name in enumerate(EVERY) if torch.equal(one[:, place], other[:, place])}
    assert same == {name for name in EVERY if TABLE[name].is_of_clock} | {"up_share_60"}


@pytest.mark.parametrize("start", [0, 1, 333, 611])
@pytest.mark.parametrize("stop", [1200, 1497])
def test_features_do_not_depend_on_where_the_series_begins(candles, start: int, stop: int) -> None:
    whole = compute_inputs(candles)
    part = compute_inputs(candles.rows(start, stop))
    assert torch.equal(whole[start + WARMUP : stop], part[WARMUP:])


@pytest.mark.parametrize("start", [1, 333])
def test_a_feature_depends_only_on_its_lookback(candles, start: int) -> None:
    whole = compute_inputs(candles, features=EVERY)[start:]
    part = compute_inputs(candles.rows(start), features=EVERY)
    for place, name in enumerate(EVERY):
        back = LOOKBACK[name]
        assert torch.equal(whole[back:, place], part[back:, place]), name
        # An exponential mean leaves out less than a digit; extremes may be younger.
        if 0 < back < 255 and TABLE[name].function not in ("stochastic", "near_high", "aroon"):
            assert whole[back - 1, place] != part[back - 1, place], f"{name} looks back less than {back} bars"


@pytest.mark.parametrize("start", [1, 97, 333])
def test_a_feature_of_longer_bars_depends_only_on_its_lookback(make_candles, start: int) -> None:
    candles = make_candles(3500, drop=[400, 401, 402, *range(900, 960)])
    whole, part = (
        compute_inputs(candles, features=LONGER),
        compute_inputs(candles.rows(start), features=LONGER),
    )
    for place, name in enumerate(LONGER):
        back = lookback_of(name, "1m")
        assert 0 < back < len(part)
        assert torch.equal(whole[start + back :, place], part[back:, place]), name


def test_every_feature_has_a_formula_with_its_name() -> None:
    assert {one.function for one in TABLE.values()} == FORMULAS.keys()
    assert all(one.formula and one.source for one in TABLE.values())
    assert EVERY[: len(FEATURES)] == FEATURES


def test_chosen_features_are_those_of_all(candles) -> None:
    names = ("log_return_15", "bar_range", "rsi_14")
    rows = compute_inputs(candles, features=names)
    assert rows.is_contiguous()
    assert torch.equal(rows, compute_inputs(candles)[:, [FEATURES.index(name) for name in names]])


def test_features_do_not_depend_on_the_number_of_threads(candles) -> None:
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = compute_inputs(candles)
        torch.set_num_threads(2)
        assert torch.equal(one, compute_inputs(candles))
    finally:
        torch.set_num_threads(threads)


def test_features_do_not_depend_on_units(candles) -> None:
    scaled = {name: getattr(candles, name) * 1024 for name in ("open", "high", "low", "close")}
    rows = compute_inputs(replace(candles, **scaled, volume=candles.volume / 4096))
    torch.testing.assert_close(rows[WARMUP:], compute_inputs(candles)[WARMUP:], rtol=1e-5, atol=1e-6)


def test_features_mean_what_their_names_say(candles) -> None:
    rows = compute_inputs(candles)
    close, volume, t = candles.close, candles.volume, CUT
    assert column(rows, "log_return_15")[t] == pytest.approx(np.log(close[t] / close[t - 15]), rel=1e-6)
    returns = np.diff(np.log(close))[t - 60 : t]  # the last 60 ending at t
    assert column(rows, "log_volatility_60")[t] == pytest.approx(np.log(returns.std() + 1e-5), rel=1e-6)
    last = volume[t - 14 : t + 1]
    assert column(rows, "volume_zscore_15")[t] == pytest.approx(
        (last[-1] - last.mean()) / last.std(), rel=1e-6
    )
    log_close = np.log(close[t - 59 : t + 1])
    assert column(rows, "price_zscore_60")[t] == pytest.approx(
        (log_close[-1] - log_close.mean()) / (log_close.std() + 1e-5), rel=1e-5
    )
    low, high = np.log(candles.low[t - 14 : t + 1].min()), np.log(candles.high[t - 14 : t + 1].max())
    stochastic = (np.log(close[t]) - (low + high) / 2) / (high - low + 1e-5)
    assert column(rows, "stochastic_15")[t] == pytest.approx(stochastic, rel=1e-5)
    assert column(rows, "bar_range")[t] == pytest.approx(np.log(candles.high[t] / candles.low[t]), rel=1e-5)
    moves = np.sign(np.diff(close))[t - 60 : t]
    assert column(rows, "up_share_60")[t] == pytest.approx(moves.mean(), abs=1e-6)


def test_rsi_is_wilders_between_minus_one_and_one(make_candles) -> None:
    candles = make_candles(800)
    up = down = 0.0
    for change in np.diff(np.log(candles.close)):  # Wilder's recursion, 14 bars
        up += (max(change, 0) - up) / 14
        down += (max(-change, 0) - down) / 14
    assert column(compute_inputs(candles), "rsi_14")[-1] == pytest.approx((up - down) / (up + down), abs=1e-5)
    rising = make_candles(800, close=np.exp(np.arange(800) / 1000))
    assert column(compute_inputs(rising), "rsi_14")[-1] == pytest.approx(1.0)


def test_the_clock_turns_once_a_day_and_once_a_week(make_candles) -> None:
    rows = compute_inputs(make_candles(400, timeframe="1h"))
    day = column(rows, "time_of_day_sin")
    assert day[303] == pytest.approx(day[327]) and day[303] != pytest.approx(day[315], abs=1e-3)
    week = column(rows, "time_of_week_cos")
    assert week[300] == pytest.approx(week[300 - 168]) and week[300] != pytest.approx(week[276], abs=1e-3)


def test_the_time_since_the_last_bar_shows_a_hole(candles) -> None:
    waited = column(compute_inputs(candles), "log_seconds_since_last_bar")
    assert waited[399] == pytest.approx(np.log1p(60))
    assert waited[400] == pytest.approx(np.log1p(240))


@pytest.mark.parametrize("features", [EVERY, LONGER], ids=["own bars", "longer"])
def test_a_market_that_stands_still_has_finite_features(make_candles, features) -> None:
    still = make_candles(600, close=[7.0] * 600)
    flat = dict.fromkeys(("open", "high", "low"), still.close)
    for odd in (still, replace(still, volume=np.zeros(600)), replace(still, **flat, volume=np.zeros(600))):
        assert torch.isfinite(compute_inputs(odd, features=features)).all()


@pytest.mark.parametrize("features", [EVERY, LONGER], ids=["own bars", "longer"])
def test_a_very_short_series_is_finite(make_candles, features) -> None:
    assert torch.isfinite(compute_inputs(make_candles(1), features=features)).all()


def test_the_pieces_that_a_cpu_works_in_do_not_show(make_candles, monkeypatch) -> None:
    candles, features = make_candles(1400, drop=[400, 401]), (*EVERY, *LONGER)
    whole = compute_inputs(candles, features=features)
    for piece, long_piece in ((300, 250), (511, 700), (699, 1399)):
        monkeypatch.setattr("trainer.data.features._PIECE", piece)
        monkeypatch.setattr("trainer.data.features._LONG_PIECE", long_piece)
        assert torch.equal(compute_inputs(candles, features=features), whole)


def test_memory_does_not_grow_with_the_history(make_candles, monkeypatch) -> None:
    monkeypatch.setattr("trainer.data.features._PIECE", 500)
    monkeypatch.setattr("trainer.data.features._LONG_PIECE", 2000)
    peaks, features = [], ("rsi_14", "log_volatility_60", "bar_body@5m")
    for bars in (4000, 4000, 16000):  # the first one imports and caches
        candles, into = make_candles(bars), torch.zeros(bars, 3)
        gc.collect()
        tracemalloc.start()
        compute_inputs(candles, features=features, into=into)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[2] < 2 * peaks[1]  # four times as many bars; other threads count, too


def test_columns_stand_behind_the_features_or_alone(make_candles) -> None:
    funding = np.concatenate([np.full(5, np.nan), np.linspace(-1, 1, 595)])
    candles = replace(make_candles(600), columns={"funding": funding, "count": np.arange(600.0)})
    rows = compute_inputs(candles)
    assert rows.shape == (600, len(FEATURES) + 2) and rows.is_contiguous()
    assert torch.equal(rows[:, :-2], compute_inputs(make_candles(600)))
    alone = compute_inputs(candles, features=())
    assert torch.equal(alone, rows[:, -2:]) and alone.dtype == torch.float32
    np.testing.assert_array_equal(alone[:, 0], np.where(np.arange(600) < 5, 0, funding).astype(np.float32))


def test_features_of_the_date_use_nothing_that_numpy_ends(candles) -> None:
    """numpy 2.5 warns of a month or year plus a bare integer, and will refuse it."""
    bars = FeatureBars(candles, head=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert clock.turn_of_month(bars, 1).shape == clock.time_of_year_sin(bars, 1).shape == (len(candles),)
