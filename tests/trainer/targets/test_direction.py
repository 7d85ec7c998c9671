"""Direction: its labels, its metrics by hand, and the simple forecasts beside it."""

from __future__ import annotations

import math
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import torch

from trainer.targets.barrier import CLASSES, Barrier
from trainer.targets.direction import Direction
from trainer.targets.logistic import logistic
from trainer.targets.scoring import Features, temperature

TARGET = Direction(horizon=1)
NAMES = ("accuracy", "auc", "mcc", "log_loss", "brier")


@pytest.fixture(scope="module")
def guesses() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(1)
    labels = (random.random(600) < 0.55).astype(float)
    return np.round(np.clip(0.5 + 0.1 * (labels - 0.5) + random.normal(0, 0.1, 600), 0, 1), 2), labels


def test_a_label_is_the_sign_of_the_move_and_a_tie_is_none(make_candles) -> None:
    candles = make_candles(5, close=[1.0, 2.0, 1.0, 3.0, 1.0])
    found = replace(TARGET, horizon=2).label(candles, candles.timestamp)
    np.testing.assert_array_equal(found.values_TK[:, 0], [np.nan, 1.0, np.nan, np.nan, np.nan])
    assert found.ends_T.tolist() == [2, 3, 4, -1, -1]
    candles = make_candles(3, close=[3.0, 2.0, 2.5])
    np.testing.assert_array_equal(
        TARGET.label(candles, candles.timestamp).values_TK[:, 0], [0.0, 1.0, np.nan]
    )


def test_metrics_of_a_small_example_by_hand():
    found = TARGET.scores(np.array([0.9, 0.8, 0.3, 0.6, 0.2]), np.array([1, 1, 1, 0, 0]))
    assert found["n"] == 5
    assert found["accuracy"] == 3 / 5  # 0.3 is a missed rise, 0.6 a false one
    assert found["base_rate"] == 3 / 5
    assert found["auc"] == 5 / 6  # of six pairs, 0.3 under 0.6 is the one that is wrong
    assert found["mcc"] == pytest.approx((2 * 1 - 1 * 1) / math.sqrt(3 * 3 * 2 * 2))
    assert found["log_loss"] == pytest.approx(-np.mean(np.log([0.9, 0.8, 0.3, 0.4, 0.8])))
    assert found["brier"] == pytest.approx(np.mean([0.01, 0.04, 0.49, 0.36, 0.04]))


def test_tied_probabilities_count_half_in_the_auc():
    assert TARGET.scores(np.array([0.5, 0.5, 0.5, 0.5]), np.array([1, 0, 1, 0]))["auc"] == 0.5
    assert TARGET.scores(np.array([0.7, 0.5, 0.5, 0.1]), np.array([1, 1, 0, 0]))["auc"] == (3 + 0.5) / 4


def test_the_auc_equals_a_count_of_all_pairs():
    random = np.random.default_rng(0)
    chances, labels = random.integers(0, 20, 200) / 20, random.integers(0, 2, 200)
    ones, zeros = chances[labels == 1], chances[labels == 0]
    wins = (ones[:, None] > zeros).sum() + 0.5 * (ones[:, None] == zeros).sum()
    assert TARGET.scores(chances, labels)["auc"] == pytest.approx(wins / (len(ones) * len(zeros)), abs=1e-15)


def test_one_class_has_no_auc_and_a_constant_forecast_no_mcc():
    assert TARGET.scores(np.array([0.9, 0.8]), np.array([1, 1]))["auc"] is None
    assert TARGET.scores(np.array([0.9, 0.8]), np.array([1, 0]))["mcc"] == 0.0


def test_a_certain_wrong_forecast_has_a_finite_loss():
    assert math.isfinite(TARGET.scores(np.array([1.0, 0.0]), np.array([0, 1]))["log_loss"])


def test_the_loss_is_the_log_loss_of_the_probabilities():
    logits, labels = np.array([[-30.0], [2.0], [0.0]]), np.array([[0.0], [1.0], [1.0]])
    each = TARGET.loss(torch.from_numpy(logits), torch.from_numpy(labels))
    assert each.shape == (3,)
    assert float(each.mean()) == pytest.approx(TARGET.scores(TARGET.forecast(logits, {}), labels)["log_loss"])


def test_a_window_says_how_much_a_score_would_change_without_it(guesses) -> None:
    """The mean of the values per bar is the score, and their spread the influence of single windows: to first
    order, what a window that counts a little more adds.
    """
    chances, labels = guesses
    values = TARGET.per_bar(chances, labels)
    copies, more = 200, 7
    plain = TARGET.scores(np.repeat(chances, copies), np.repeat(labels, copies))
    for window in (0, 17, 500):
        times = np.full(600, copies)
        times[window] += more
        weighted = TARGET.scores(np.repeat(chances, times), np.repeat(labels, times))
        for name in NAMES:
            added = (weighted[name] - plain[name]) * times.sum() / more
            assert values[name][window] - plain[name] == pytest.approx(added, abs=2e-3 * abs(added) + 1e-6), (
                name
            )
            assert values[name].mean() == pytest.approx(plain[name], rel=1e-12)


@pytest.mark.nightly
@pytest.mark.slow
def test_logistic_regression_finds_a_planted_signal() -> None:
    random = np.random.default_rng(6)
    rows = random.normal(0, 1, (200_000, 3))
    chance = 1 / (1 + np.exp(-(rows @ [1.0, -0.5, 0.0] + 0.3)))
    labels = (random.random(200_000) < chance).astype(float)
    assert logistic(rows, labels, rows)[:, 1] == pytest.approx(chance, abs=0.02)
    few, found = slice(0, 400), logistic(rows[:400], labels[:400], rows[:400])[:, 1]
    logits = np.log(found / (1 - found))
    weights, *_ = np.linalg.lstsq(np.column_stack([rows[few], np.ones(400)]), logits, rcond=None)
    # At the minimum of log loss + |weights|^2 / 2, with a free intercept.
    gradient = np.column_stack([rows[few], np.ones(400)]).T @ (labels[few] - found)
    assert gradient == pytest.approx([*weights[:3], 0.0], abs=1e-5)


@pytest.mark.filterwarnings(  # not every kind: one may be about an earlier test's garbage
    *("error::RuntimeWarning", "error::FutureWarning", "error::DeprecationWarning")
)
def test_logistic_regression_is_finite_with_collinear_features() -> None:
    x = np.linspace(-1, 1, 500)
    both = np.stack([x, x, np.zeros(500)], axis=1)
    found = logistic(both, (x > 0).astype(float), np.concatenate([both, [[1, -1, 0]]]))[:, 1]
    assert np.isfinite(found).all() and (np.diff(found[:500]) > 0).all()
    assert found[500] == pytest.approx(0.5, abs=1e-3)  # both features have the same weight


def test_a_regression_on_many_bars_holds_few_features_at_once():
    bars, width = 50_000, 20
    table = Features(parts=((lambda rows: np.outer(np.sin(rows), np.ones(width)), np.arange(bars)),))
    labels = np.sin(np.arange(bars)) > 0.3
    tracemalloc.start()
    logistic(table, labels, table)
    assert tracemalloc.get_traced_memory()[1] < bars * width * 8 / 2, "half of the features in float64"
    tracemalloc.stop()


def test_a_temperature_makes_probabilities_honest():
    random = np.random.default_rng(0)
    logits = random.normal(0, 1, 20_000)
    labels = (random.random(20_000) < 1 / (1 + np.exp(-logits))).astype(np.int64)
    for factor in (0.5, 1.0, 4.0):
        stacked = np.stack([np.zeros(20_000), factor * logits], axis=1)
        assert temperature(stacked, labels) == pytest.approx(factor, rel=0.04)
    assert temperature(np.stack([np.zeros(20_000), -logits], axis=1), labels) == 8.0, "never turned round"
    assert temperature(np.zeros((9, 2)), np.ones(9, dtype=np.int64)) == 1.0
    assert temperature(stacked * 1e4, labels) == 8.0, "of logits whose powers are no numbers"
    outputs, truth = 4 * logits[:, None], labels[:, None].astype(float)
    fitted = TARGET.calibrate(outputs, truth, {"kept": 1.0})
    before, after = (TARGET.scores(TARGET.forecast(outputs, one), truth) for one in ({}, fitted))
    assert after["log_loss"] < before["log_loss"] and after["auc"] == before["auc"] and fitted["kept"] == 1.0


def test_chances_of_barriers_are_honest_by_their_temperature():
    random, target = np.random.default_rng(0), Barrier()
    logits = random.normal(0, 1, (20_000, 3))
    honest = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    labels = (random.random((20_000, 1)) > honest.cumsum(axis=1)).sum(axis=1, keepdims=True).astype(float)
    assert target.forecast(logits, {}) == pytest.approx(honest)
    fitted = target.calibrate(4 * logits, labels, {})
    assert target.forecast(4 * logits, fitted) == pytest.approx(honest, abs=0.03)
    for name, (chances, happened) in target.events(honest, labels).items():
        place = CLASSES.index(name)
        assert (chances == honest[:, place]).all() and (happened == (labels[:, 0] == place)).all()
