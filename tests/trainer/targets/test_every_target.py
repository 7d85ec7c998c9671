"""Promises of every target: labels that end where they say, wherever the series begins; a loss a label;
baselines; words.
"""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
import torch

from tests.jobs import PAIRS, job_of, keys_for
from trainer.data.calendar import session_clock
from trainer.data.read.candles import Candles
from trainer.data.synthetic import synthetic_candles
from trainer.targets import TARGETS
from trainer.targets.bars import (
    Labels,
    moves_in_volatilities,
    sums_over,
    trailing_deviation,
    volatility_unit,
)
from trainer.targets.scoring import Rows, correlation_per_bar, linear_quantile
from trainer.targets.target import HIGHER, LOWER, TargetSettings
from trainer.train.inputs.rows import prepare

BARS, WARM = 1500, 300
KEYS = {name: keys_for({"horizon_sessions": 2}, model="lstm", target=name) for name in TARGETS}
EVERY = pytest.mark.parametrize("target", [job_of(**keys).target for keys in KEYS.values()], ids=TARGETS)


@pytest.fixture(scope="module")
def candles() -> Candles:
    return synthetic_candles("AAA", bars=BARS, timeframe="1h", seed=3)


def labels(target: TargetSettings, candles: Candles) -> Labels:
    clock = session_clock(candles.timestamp, candles.timeframe, "24x7")
    return target.label(candles, clock)


def moved(candles: Candles, after: int) -> Candles:
    """Return the candles with every price after a bar changed, each by its own, and by much."""
    random = np.random.default_rng(after)
    factor = np.ones(len(candles))
    factor[after + 1 :] = np.exp(random.normal(0, 0.2, len(candles) - after - 1))
    return replace(
        candles, **{name: getattr(candles, name) * factor for name in ("open", "high", "low", "close")}
    )


def changed_by_what_follows(target: TargetSettings, candles: Candles, *, short: int) -> int:
    """Return how many of some labels move when the bars after their end move, were each end `short` bars
    earlier.
    """
    before, changed = labels(target, candles), 0
    for bar in range(WARM, BARS - 200, 37):
        after = labels(target, moved(candles, int(before.ends_T[bar]) - short))
        changed += not np.array_equal(after.values_TK[bar], before.values_TK[bar], equal_nan=True)
    return changed


@EVERY
def test_bars_after_its_end_change_no_label(target, candles):
    assert changed_by_what_follows(target, candles, short=0) == 0
    assert changed_by_what_follows(target, candles, short=1) > 0


@pytest.mark.parametrize(("model", "name"), PAIRS)
def test_bars_after_training_change_nothing_that_is_trained_on(model, name, candles):
    settings = {
        "lookback": 12,
        "blocks": 2,
        "width": 4,
        "chunk": 32,
        "horizon_sessions": 2,
        "validation_fraction": 0.2,
    }
    job = job_of(**keys_for(settings, model=model, target=name), test_fraction=0.2)
    data = prepare(candles, job)
    other = prepare(moved(candles, data.spans.train.stop - 1), job)
    for part in ("mean_F", "std_F", "reads"):
        assert torch.equal(getattr(data, part), getattr(other, part))
    assert torch.equal(data.train_labels_TK.nan_to_num(-9), other.train_labels_TK.nan_to_num(-9))
    assert data.fitted == other.fitted and data.bars("train").tolist() == other.bars("train").tolist()
    assert not np.array_equal(data.labels("test"), other.labels("test"))


@EVERY
def test_a_label_does_not_depend_on_where_the_series_begins(target, candles):
    whole = labels(target, candles)
    for cut in (24, 96, 480):
        part = labels(target, candles.rows(cut))
        known = np.arange(target.reach, BARS - cut)
        assert np.array_equal(part.values_TK[known], whole.values_TK[known + cut], equal_nan=True)
        ends = whole.ends_T[known + cut]
        assert np.array_equal(part.ends_T[known], np.where(ends >= 0, ends - cut, -1))


@EVERY
def test_the_loss_is_one_number_a_label_and_knows_no_other_label(target):
    outputs = torch.randn(4, 6, target.outputs, dtype=torch.float64, requires_grad=True)
    truth = torch.randint(0, 2, (4, 6, target.label_columns)).double()
    each = target.loss(outputs, truth)
    assert each.shape == (4, 6) and bool((each >= 0).all())
    torch.testing.assert_close(target.loss(outputs[2:3], truth[2:3]), each[2:3])
    each.sum().backward()
    assert outputs.grad is not None and bool((outputs.grad != 0).any(-1).all())


@EVERY
def test_scores_have_an_unconditional_baseline_and_a_description(target, candles):
    found = labels(target, candles)
    clock = session_clock(candles.timestamp, candles.timeframe, "24x7")
    known = np.flatnonzero(np.isfinite(found.values_TK[:, 0]) & (np.arange(BARS) >= WARM))
    fitted = target.fit(found.values_TK[known])
    rows = Rows(
        candles=candles,
        clock=clock,
        labels_TK=found.values_TK,
        fitted=fitted,
        train=known[:600],
        scored=known[700:],
        features=lambda bars: np.random.default_rng(0).normal(size=(len(bars), 3)).astype(np.float32),
    )
    simple, truth = target.baselines(rows), rows.labels(rows.scored)
    constant = [
        name for name, said in simple.items() if len(np.unique(said.reshape(len(said), -1), axis=0)) == 1
    ]
    assert constant, "one forecast knows nothing of the bar"
    outputs = np.random.default_rng(1).normal(size=(len(rows.scored), target.outputs))
    fitted = target.calibrate(outputs, truth, fitted)
    said = target.forecast(outputs, fitted)
    metrics = target.scores(said, truth)
    described = {metric.name for metric in target.metrics}
    assert metrics.keys() == described | {"n"} and metrics["n"] == len(said)
    assert target.proper and set(target.proper) <= described
    assert all(metric.better in (HIGHER, LOWER) and metric.title for metric in target.metrics)
    shown = {
        "test": {
            **metrics,
            "baselines": {name: target.scores(one, truth) for name, one in simple.items()},
        }
    }
    for column in target.about()["table"]:
        for path in (column["value"], column["beside"]):
            value = shown["test"]
            for name in path:
                value = value[name]
    for name, column in target.columns(outputs, candles, rows.scored, fitted).items():
        assert len(column) == len(rows.scored) and np.isfinite(column).all(), name


def test_keys_of_one_name_have_one_default():
    known: dict[str, object] = {}
    for home in TARGETS.values():
        for item in fields(home):
            assert known.setdefault(item.name, item.default) == item.default


def test_sums_over_ranges_do_not_depend_on_earlier_values():
    values = np.random.default_rng(0).normal(size=500)
    first, counts = np.arange(100, 300), np.random.default_rng(1).integers(0, 200, 200)
    expected = [values[start : start + count].sum() for start, count in zip(first, counts, strict=True)]
    found = sums_over(values, first, counts)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
    assert np.array_equal(sums_over(values[57:], first - 57, counts), found)


def test_trailing_deviation_by_hand():
    close = np.exp(np.cumsum([0.0, 0.1, -0.1, 0.2, 0.0]))
    found = trailing_deviation(close, 2)
    assert np.isnan(found[:2]).all()
    np.testing.assert_allclose(found[2:], np.sqrt([0.01, 0.025, 0.02]))


def test_a_barrier_is_the_one_that_is_reached_first(make_candles):
    target = TARGETS["barrier"](horizon=3, volatility_bars=2, barrier_width=1.0)
    flat = [0.01, -0.01] * 5  # a deviation of 0.01: barriers lie 0.01 x sqrt(3) = 0.0173 away
    for moves, expected in (
        ([0.02, -0.05, 0.0], 2),
        ([-0.02, 0.06, 0.0], 0),
        ([0.01, 0.005, -0.01], 1),
        ([0.01, 0.01, 0.0], 2),
    ):
        close = 100 * np.exp(np.cumsum([0.0, *flat, *moves]))
        bar = len(flat)
        assert labels(target, make_candles(len(close), close=close)).values_TK[bar, 0] == expected


def test_quantiles_are_shifted_until_validation_is_covered():
    target, random = TARGETS["quantiles"](coverage=0.8), np.random.default_rng(0)
    truth = random.normal(size=(5000, 1))
    narrow = np.tile([-0.1, 0.0, 0.1], (5000, 1))
    fitted = target.calibrate(narrow, truth, {})
    covered = target.scores(target.forecast(narrow, fitted), truth)["covered"]
    assert covered == pytest.approx(0.8, abs=1e-3) and fitted["shift"] == pytest.approx(1.18, abs=0.05)
    wide = target.calibrate(100 * narrow, truth, {})
    assert wide["shift"] < 0
    again = random.normal(size=(5000, 1))
    assert target.scores(target.forecast(narrow, fitted), again)["covered"] == pytest.approx(0.8, abs=0.03)


def test_a_bars_part_in_a_correlation_is_its_influence():
    random = np.random.default_rng(0)
    x = 5 + 1e-3 * random.standard_normal(500)
    y = 100 * (x - 5) + random.standard_normal(500)
    each = correlation_per_bar(x, y)
    plain = np.corrcoef(x, y)[0, 1]
    assert each is not None and each.mean() == pytest.approx(plain, abs=1e-12)
    for bar in (0, 250):
        weights = np.ones(500)
        weights[bar] += 1e-5
        spread = np.cov(x, y, aweights=weights)
        added = (spread[0, 1] / np.sqrt(spread[0, 0] * spread[1, 1]) - plain) * 500 / 1e-5
        assert each[bar] - plain == pytest.approx(added, rel=1e-3, abs=1e-4)
    assert correlation_per_bar(np.full(500, 0.3), y) is None


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e9])
def test_a_correlation_does_not_depend_on_units(scale: float) -> None:
    random = np.random.default_rng(0)
    x, y = random.standard_normal((2, 356))
    each, plain = correlation_per_bar(scale * x, scale * y), correlation_per_bar(x, y)
    assert each is not None and plain is not None and each.mean() == pytest.approx(plain.mean())
    constant = np.full(356, scale * 10.2)  # of 10.2 the mean is off in the last digit
    assert correlation_per_bar(constant, 1e9 * y) is None and correlation_per_bar(1e9 * y, constant) is None


def test_a_quantile_regression_has_the_least_pinball_loss():
    from sklearn.linear_model import QuantileRegressor

    random = np.random.default_rng(0)
    x = random.normal(size=(600, 3)).astype(np.float32)
    labels = x @ np.array([1.0, -0.5, 0.0]) + (1 + 0.5 * np.abs(x[:, 0])) * random.standard_t(4, 600)

    def pinball(forecast: np.ndarray, level: float) -> float:
        missed = labels - forecast
        return float(np.maximum(level * missed, (level - 1) * missed).mean())

    for level in (0.1, 0.5, 0.9):
        ours = linear_quantile(x, labels, x, level)
        exact = QuantileRegressor(quantile=level, alpha=0, solver="highs").fit(x, labels).predict(x)
        assert pinball(ours, level) == pytest.approx(pinball(exact, level), rel=1e-3)
        assert np.mean(labels <= ours) == pytest.approx(level, abs=0.02)


def test_classes_that_training_lacks_have_no_chance():
    target = TARGETS["barrier"]()
    random = np.random.default_rng(0)
    x = random.normal(size=(400, 2)).astype(np.float32)
    classes = np.where(x[:, :1] > 0, 2.0, 0.0).astype(np.float32)
    rows = Rows(
        candles=None,
        clock=np.arange(400),
        labels_TK=classes,
        fitted={},
        train=np.arange(300),
        scored=np.arange(300, 400),
        features=lambda bars: x[bars],
    )
    said = target.baselines(rows)["logistic"]
    assert (
        said.shape == (100, 3) and said[:, 1].max() < 1e-9 and said.sum(axis=1) == pytest.approx(np.ones(100))
    )
    assert target.scores(said, rows.labels(rows.scored))["accuracy"] > 0.9


def test_nearly_equal_closes_make_no_label_huge():
    close = 100 * np.exp(1e-9 * np.random.default_rng(0).standard_normal(400).cumsum())
    close[300:] *= 1.001
    unit = volatility_unit(close, horizon=4, span=20)
    assert np.isnan(unit[:20]).all() and unit[25:300] == pytest.approx(2e-5)
    moves = moves_in_volatilities(close, horizon=4, span=20).values_TK[:, 0]
    assert np.nanmax(np.abs(moves)) == pytest.approx(np.log(1.001) / 2e-5, rel=1e-3)
    assert np.isnan(volatility_unit(np.full(100, 5.0), horizon=4, span=20)).all(), "no move, no unit"


def test_returns_are_clipped_as_labels_and_not_in_scores():
    labels = np.array([[-50.0], [-3.0], [0.5], [12.0]])
    assert TARGETS["return"]().scale(labels, {})[:, 0].tolist() == [-10.0, -3.0, 0.5, 10.0]
    assert TARGETS["return"](clip=0).scale(labels, {}) is labels
    assert TARGETS["return"]().scores(np.zeros(4), labels)["mse"] == pytest.approx((labels**2).mean())
