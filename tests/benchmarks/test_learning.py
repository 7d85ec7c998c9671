"""Learning is real: the parts of benchmarks/learning.py that are small enough to be seen each time."""

from __future__ import annotations

import pytest
import torch

from benchmarks.learning import PROPER, chance, looks_like_chance, nothing, planted


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> None:
    """Train on one thread, as workers do."""
    torch.set_num_threads(1)


@pytest.mark.slow
def test_a_signal_20_to_40_bars_back_is_found():
    found = planted(0, moves=8_000, epochs=5)
    print(found)  # what could be attained stands in the report of a failure
    assert found["attainable"] >= 0.95 and found["logistic on the last bar"] < 0.6
    assert found["auc"] > 0.9


@pytest.mark.slow
def test_random_walks_are_seen_as_chance_and_one_feature_read_one_bar_ahead_is_seen_at_once():
    honest = [chance(seed) for seed in range(5)]
    assert min(found["test windows"] for found in honest) >= 10_000
    assert looks_like_chance([found["auc"] for found in honest])
    assert not looks_like_chance([chance(seed, ahead=True)["auc"] for seed in range(5)])


@pytest.mark.slow
@pytest.mark.parametrize("target", PROPER)
def test_a_walk_of_constant_volatility_gives_no_target_a_gain_over_what_knows_nothing(target):
    found = nothing(target, 0, bars=12_000)
    print(found)
    assert found["gain low"] <= 0
    if found["covered low"] is not None:
        assert found["covered low"] <= 0.8 <= found["covered high"]
