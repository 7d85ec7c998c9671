"""Runs on random walks carry no mark, and no mark is contradicted by a number beside it."""

from __future__ import annotations

import pytest

from benchmarks.walks import RUNS, STOCKS, contradictions, stock_run, walk_run
from trainer.targets import TARGETS


def test_a_mark_that_its_numbers_contradict_is_seen():
    gain = {"gain": 0.1, "low": 0.05, "high": 0.15}
    test = {
        "log_loss": 0.6,
        "brier": 0.2,
        "baselines": {"base_rate": {"log_loss": 0.7, "brier": 0.25}},
        "better": {"base_rate": {"log_loss": gain, "brier": gain}},
    }
    metrics, better = {"about": TARGETS["direction"]().about(), "test": test}, {"mark": "better"}
    assert contradictions(metrics, better) == []
    assert contradictions(metrics, {"mark": "worse"}) == ["worse, and its score is the best"]
    test["log_loss"] = 0.8
    assert contradictions(metrics, better) == ["better, and log_loss does not beat base_rate beyond chance"]
    test.update(log_loss=0.6, brier=0.3)
    test["better"]["base_rate"]["brier"] = {"gain": -0.1, "low": -0.2, "high": -0.05}
    assert contradictions(metrics, better) == ["better, and brier is worse than base_rate beyond chance"]


@pytest.mark.nightly
def test_runs_on_random_walks_carry_as_few_marks_as_chance():
    """At 5 % a run, four of twenty or more happen once in sixty nights."""
    runs = [walk_run(run) for run in range(RUNS)]
    assert sum(row["marks"]["better"] > 0 for row in runs) <= 3
    assert [row["contradictions"] for row in runs] == [[]] * RUNS


@pytest.mark.nightly
def test_no_mark_of_a_hundred_stocks_contradicts_its_numbers():
    row = stock_run(STOCKS)
    assert row["models"] == STOCKS and row["contradictions"] == []
