"""Volatility: its labels, its metrics by hand, and the simple forecasts beside it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from trainer.data.timeframes import DAY
from trainer.targets.bars import past_log_volatility
from trainer.targets.scoring import Rows
from trainer.targets.volatility import Volatility

TARGET = Volatility(horizon_sessions=1)


def label_sessions(
    close: np.ndarray, clock: np.ndarray, sessions: int, make_candles
) -> tuple[np.ndarray, np.ndarray]:
    found = replace(TARGET, horizon_sessions=sessions).label(make_candles(len(close), close=close), clock)
    return found.values_TK[:, 0], found.ends_T


def test_a_label_is_the_realized_volatility_of_the_next_session(make_candles):
    clock = np.array([0, 1, 2, DAY, DAY + 1, DAY + 2, 2 * DAY])  # three bars a session
    moves = np.array([0.01, -0.02, 0.03, 0.04, -0.05, 0.06])
    close = 100 * np.exp(np.concatenate([[0.0], np.cumsum(moves)]))
    labels, ends = label_sessions(close, clock, 1, make_candles)
    assert ends.tolist() == [3, 4, 5, 6, -1, -1, -1]
    expected = [np.log(np.sqrt(np.sum(moves[bar : bar + 3] ** 2))) for bar in range(4)]
    np.testing.assert_allclose(labels[:4], expected, rtol=1e-6)
    assert np.isnan(labels[4:]).all()


def test_an_early_close_ends_the_label_with_its_last_bar(make_candles):
    clock = np.array([0, 1, 2, DAY, 2 * DAY, 2 * DAY + 1])  # the second session has one bar
    _, ends = label_sessions(np.exp(0.01 * np.arange(6.0)), clock, 1, make_candles)
    assert ends.tolist() == [3, 3, 3, 4, -1, -1]


def test_labels_read_later_prices_and_baselines_earlier_ones(make_candles):
    candles = make_candles(600, timeframe="2h")
    clock = DAY * (np.arange(600) // 12) + np.arange(600) % 12
    bar = 300
    for altered, changed, same in (
        (slice(0, bar), past_log_volatility, lambda *given: label_sessions(*given, make_candles)[0]),
        (slice(bar + 1, None), lambda *given: label_sessions(*given, make_candles)[0], past_log_volatility),
    ):
        close = candles.close.copy()
        close[altered] *= np.exp(np.random.default_rng(1).normal(0, 0.05, len(close[altered])))
        assert same(close, clock, 2)[bar] == same(candles.close, clock, 2)[bar]
        assert abs(changed(close, clock, 2)[bar] - changed(candles.close, clock, 2)[bar]) > 0.1


def test_trailing_volatility_begins_after_its_sessions():
    clock = DAY * (np.arange(60) // 12) + np.arange(60) % 12
    known = np.isfinite(past_log_volatility(np.exp(np.sin(np.arange(60.0))), clock, 2))
    assert known.tolist() == [False] * 24 + [True] * 36


def both(logs: np.ndarray) -> np.ndarray:
    """Return forecasts whose variance is the square of the exponential of their log."""
    return np.stack([logs, logs], axis=1)


def test_metrics_by_hand():
    labels = np.log([0.01, 0.02, 0.04])
    perfect = TARGET.scores(both(labels), labels)
    assert (perfect["n"], perfect["qlike"], perfect["mse"]) == (3, 0.0, 0.0)
    assert perfect["correlation"] == pytest.approx(1)
    doubled = TARGET.scores(both(labels + np.log(2)), labels)  # a variance four times too high: v/f = 1/4
    assert doubled["qlike"] == pytest.approx(0.25 - np.log(0.25) - 1)
    assert doubled["mse"] == pytest.approx(np.log(2) ** 2)
    assert TARGET.scores(both(np.full(3, -4.0)), labels)["correlation"] is None


def noisy(bars: int, *, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return outputs that are the mean of the scaled log, the labels, and what has scaled them."""
    random = np.random.default_rng(seed)
    fitted = {"label_mean": -4.0, "label_std": 0.5}
    known = random.normal(size=bars)
    labels = -4.0 + 0.5 * known + 0.4 * random.normal(size=bars)
    return known[:, None], labels[:, None], fitted


def test_a_mean_log_is_mapped_back_without_bias():
    """The mean variance of normal logs is known: the smearing factor is exp(2 x 0.4^2)."""
    fitted = TARGET.calibrate(*noisy(40_000, seed=0))
    assert fitted["smearing"] == pytest.approx(np.exp(2 * 0.4**2), rel=0.03)
    outputs, labels, plain = noisy(40_000, seed=1)
    variance = np.exp(2 * labels[:, 0])
    said = {name: TARGET.columns(outputs, None, None, one)["volatility"] ** 2
            for name, one in {"plain": plain, "smeared": fitted}.items()}  # fmt: skip
    assert (variance / said["smeared"]).mean() == pytest.approx(1, abs=0.02)
    assert (variance / said["plain"]).mean() > 1.3
    before, after = (TARGET.scores(TARGET.forecast(outputs, one), labels) for one in (plain, fitted))
    assert after["qlike"] < before["qlike"] - 0.02
    for score in ("mse", "correlation"):
        assert after[score] == before[score], "scores of logs are those of the mean log"


def test_errors_beyond_measure_have_a_bounded_smearing_factor():
    fitted = {"label_mean": 0.0, "label_std": 1.0}
    low, high = (
        TARGET.calibrate(np.full((5, 1), miss), np.zeros((5, 1)), fitted)["smearing"] for miss in (1e4, -1e4)
    )
    assert 0 < low < 1 < high < np.inf
    assert TARGET.calibrate(np.empty((0, 1)), np.empty((0, 1)), fitted)["smearing"] == 1


def test_baselines_are_mapped_back_by_their_errors_in_training(make_candles):
    candles = make_candles(1200, timeframe="2h")
    clock = DAY * (np.arange(1200) // 12) + np.arange(1200) % 12
    found = TARGET.label(candles, clock)
    known = np.flatnonzero(np.isfinite(found.values_TK[:, 0]) & (np.arange(1200) >= 24 * 12))
    rows = Rows(
        candles=candles, clock=clock, labels_TK=found.values_TK, train=known[:500], scored=known[:500],
        fitted=TARGET.fit(found.values_TK[known[:500]]), features=lambda bars: np.zeros((len(bars), 1)),
    )  # fmt: skip
    labels, made = rows.labels(rows.train)[:, 0], TARGET.baselines(rows)
    for name, forecast in made.items():
        assert np.exp(2 * (labels - forecast[:, 1])).mean() == pytest.approx(1), name
    # 41 sessions of training: enough for the terms of a session and a week, not of a month.
    past = [past_log_volatility(candles.close, clock, term)[known[:500]] for term in (1, 5)]
    table = np.stack([*past, np.ones(500)], axis=1)
    har = table @ np.linalg.lstsq(table, labels, rcond=None)[0]
    np.testing.assert_allclose(made["har"][:, 0], har, rtol=1e-9)
