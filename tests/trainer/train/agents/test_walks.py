"""Trained agents on random walks: none is worth using."""

from __future__ import annotations

import pytest

from benchmarks.planted import MINUTE, constant_walk
from benchmarks.walks import SMALL, marks_of, trained

pytestmark = pytest.mark.nightly


def test_no_trained_agent_of_twenty_random_walks_is_marked() -> None:
    candles = [
        constant_walk(number, bars=3_000, symbol=f"W{number}", timeframe="1h", step=60 * MINUTE)
        for number in range(20)
    ]
    keys = {**SMALL, "model.name": "mlp", "train.batch": 64, "train.learning_rate": 1e-3}
    made = marks_of(trained(candles, "position", keys))
    assert made["models"] == 20 and made["marks"].get("better", 0) == 0, made
    assert not made["contradictions"]
