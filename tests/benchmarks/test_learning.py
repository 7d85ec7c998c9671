"""Learning is real: the parts of benchmarks/learning.py that are small enough for every run of the tests."""

from __future__ import annotations

import pytest
import torch

from benchmarks.learning import PROPER, chance, looks_like_chance, nothing, panel, planted


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> None:
    """Train on one thread, as workers do."""
    torch.set_num_threads(1)


@pytest.mark.nightly
def test_a_signal_20_to_40_bars_back_is_found():
    scores = planted(0, moves=8_000, epochs=5)
    print(scores)  # the attainable AUC, in the report of a failure
    assert scores["attainable"] >= 0.95 and scores["logistic on the last bar"] < 0.6
    assert scores["auc"] > 0.9


@pytest.mark.nightly
def test_a_planted_order_of_series_is_found_a_shuffled_one_not():
    order, chance = (panel(0, "rank", series=14, dates=300, shuffled=shuffled) for shuffled in (False, True))
    assert order["rank correlation"] > 0.3 < order["low"] + 0.1
    assert chance["low"] <= 0 <= chance["high"]


@pytest.mark.nightly
def test_random_walks_score_as_chance_and_a_look_ahead_is_seen():
    honest = [chance(seed) for seed in range(5)]
    assert min(row["test windows"] for row in honest) >= 10_000
    assert looks_like_chance([row["auc"] for row in honest])
    assert not looks_like_chance([chance(seed, ahead=True)["auc"] for seed in range(5)])


@pytest.mark.nightly
@pytest.mark.parametrize("target", PROPER)
def test_no_target_gains_on_a_walk_of_constant_volatility(target):
    scores = nothing(target, 0, bars=12_000)
    print(scores)
    assert scores["gain low"] <= 0
    if scores["covered low"] is not None:
        assert scores["covered low"] <= 0.8 <= scores["covered high"]
