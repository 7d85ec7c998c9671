"""Deflated Sharpe ratios beside the paper's example, effective trials, and what metrics tell of trading."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest

from trainer.targets.trading import (
    Traded,
    deflate,
    deflated_sharpe,
    effective_trials,
    expected_maximum,
    read_traded,
)

# The example of the paper: five years of days, an annual Sharpe ratio of 2.5, and a variance of the trials'
# annual ones of one half.
DAYS = 250
SHARPE, SPREAD = 2.5 / math.sqrt(DAYS), 0.5 / DAYS


def test_the_papers_example():
    assert expected_maximum(SPREAD, 100) == pytest.approx(0.1132, abs=5e-5)
    fat = {"bars": 1250, "skew": -3.0, "kurtosis": 10.0, "spread": SPREAD}
    assert deflated_sharpe(SHARPE, trials=100, **fat) == pytest.approx(0.9004, abs=5e-5)
    assert deflated_sharpe(SHARPE, trials=46, **fat) == pytest.approx(0.9505, abs=5e-5)
    normal = {**fat, "skew": 0.0, "kurtosis": 3.0}
    assert deflated_sharpe(SHARPE, trials=88, **normal) == pytest.approx(0.9505, abs=5e-5)


def test_formulas_are_scipys():
    from scipy import stats  # late: each worker of pytest imports this file

    for trials in (2, 7.5, 46, 5_000):
        maximum = math.sqrt(SPREAD) * (
            (1 - np.euler_gamma) * stats.norm.ppf(1 - 1 / trials)
            + np.euler_gamma * stats.norm.ppf(1 - 1 / (trials * np.e))
        )
        assert expected_maximum(SPREAD, trials) == pytest.approx(max(0, maximum), rel=1e-9)
    found = deflated_sharpe(0.1, bars=500, skew=0.5, kurtosis=5.0, spread=SPREAD, trials=10)
    z = (0.1 - expected_maximum(SPREAD, 10)) * math.sqrt(499) / math.sqrt(1 - 0.05 + 0.01)
    assert found == pytest.approx(stats.norm.cdf(z), rel=1e-9)


def test_the_best_of_many_without_skill_is_expected_there():
    random = np.random.default_rng(0)
    best = random.normal(0, math.sqrt(SPREAD), (20_000, 100)).max(axis=1)
    assert expected_maximum(SPREAD, 100) == pytest.approx(best.mean(), rel=0.01)


def test_one_trial_is_not_deflated():
    assert expected_maximum(SPREAD, 1) == expected_maximum(0.0, 100) == 0
    alone = deflated_sharpe(0.05, bars=401, skew=0, kurtosis=3, spread=0.0, trials=1)
    assert alone == pytest.approx(NormalDist().cdf(0.05 * 20 / math.sqrt(1 + 0.05**2 / 2)))
    assert deflated_sharpe(1.0, bars=9, skew=5.0, kurtosis=1.0, spread=0.0, trials=1) == 0.0


def test_trials_that_are_alike_count_less():
    random = np.random.default_rng(1)
    common, own = random.normal(size=300), random.normal(size=(20, 300))

    def worth(share: float) -> float:
        rows = math.sqrt(share) * common + math.sqrt(1 - share) * own
        return effective_trials([dict(enumerate(row)) for row in rows.tolist()])

    assert worth(0.0) == pytest.approx(20, abs=0.5)
    assert worth(0.6) == pytest.approx(0.6 + 0.4 * 20, abs=0.7)
    assert worth(1.0) == pytest.approx(1, abs=1e-9)
    rows = math.sqrt(0.6) * common + math.sqrt(0.4) * own
    mean = np.corrcoef(rows)[np.triu_indices(20, 1)].mean()
    assert worth(0.6) == pytest.approx(mean + (1 - mean) * 20)


def test_days_in_cash_count_as_nothing_made():
    assert effective_trials([]) == 0 and effective_trials([{1: 0.5}]) == 1
    assert effective_trials([{1: 0.0, 2: 0.0}, {1: 1.0, 2: 2.0}]) == 2, "one that never varies has no like"
    apart = effective_trials([{1: 1.0, 2: -1.0}, {3: 1.0, 4: -1.0}])
    assert apart == 2


TOLD = {
    "bars": 500, "net": 0.1, "low": -0.05, "high": 0.25, "gross": 0.4, "turnover": 200.0, "exposure": 0.5,
    "hold": 0.02, "beyond_low": None, "beyond_high": None, "sharpe": 0.02, "skew": 0.1, "kurtosis": 4.0,
    "fee": 0.001, "slippage": 0.0005,
}  # fmt: skip


def test_metrics_tell_what_the_rule_made():
    found = read_traded({"test": {"trading": TOLD}})
    assert found == Traded(**TOLD) and found.break_even == pytest.approx(0.002)
    assert read_traded({"test": {"trading": {**TOLD, "turnover": 0.0}}}).break_even is None


@pytest.mark.parametrize(
    "broken",
    [{"bars": 1}, {"bars": 2.5}, {"net": None}, {"net": "1"}, {"net": float("nan")}, {"kurtosis": -1.0},
     {"sharpe": 1e12}, {"high": "x"}],
)  # fmt: skip
def test_trading_that_cant_be_read_is_none(broken):
    assert read_traded({"test": {"trading": {**TOLD, **broken}}}) is None
    for metrics in ({}, {"test": {}}, {"test": {"trading": []}}, {"test": {"trading": None}}, {"test": 3}):
        assert read_traded(metrics) is None


def test_a_run_is_deflated_by_all_of_its_models():
    one = Traded(**{**TOLD, "sharpe": 0.12})
    others = [Traded(**{**TOLD, "sharpe": value}) for value in (-0.05, 0.03, 0.0, 0.06)]
    (alone,), (among, *_) = deflate([one]), deflate([one, None, *others])
    assert alone > 0.99 > among > 0.5
    assert deflate([one, None, *others])[1] is None
    assert deflate([one, *others], trials=1.0)[0] == pytest.approx(alone)


def test_the_trials_of_a_search_deflate_its_only_model():
    """No trial is traded, so that without another model their spread is that of chance: 1 / (bars - 1)."""
    one = Traded(**{**TOLD, "sharpe": 0.12, "skew": 0.0, "kurtosis": 3.0})
    (alone,), (searched,) = deflate([one]), deflate([one], more=99)
    chance = np.random.default_rng(0).normal(size=(4_000, 100)).max(axis=1).mean() / math.sqrt(499)
    beyond = (0.12 - chance) * math.sqrt(499) / math.sqrt(1 + 0.12**2 / 2)
    assert searched == pytest.approx(NormalDist().cdf(beyond), abs=0.02)
    assert alone > 0.99 > 0.7 > searched
