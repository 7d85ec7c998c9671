"""Every model takes every target: it trains, its card describes itself, and predict says what the target's
columns are.

What is planted for one pair is found by the other, too: a volatility by a model that reads windows, a
direction by one that reads chunks. The full size, with chance, is benchmarks/learning.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from benchmarks.learning import CROSSED, crossed
from tests.jobs import PAIRS, keys_for
from tests.nightly import others_nightly
from tests.predictions import predict_file
from trainer.store.card import read_card
from trainer.targets.described import headline_title, shown

pytestmark = pytest.mark.slow  # small models are trained, two dozen
SMALL: dict[str, Any] = {
    "hidden": 4,
    "layers": 1,
    "lookback": 20,
    "width": 4,
    "blocks": 2,
    "chunk": 64,
    "epochs": 1,
    "learning_rate": 1e-2,
    "horizon_sessions": 1,
    "test_fraction": 0.3,
    "validation_fraction": 0.25,
}
COLUMNS = {
    "direction": {"probability"},
    "volatility": {"volatility"},
    "return": {"log_return", "volatilities"},
    "quantiles": {"lower", "median", "upper"},
    "barrier": {"down", "none", "up"},
    "position": {"held_-1", "held_0", "held_1"},
}


# Each model and each target; the other pairs at night.
@pytest.mark.parametrize(
    ("model", "target"),
    others_nightly(PAIRS, lambda pair: pair[0] == "lstm" or pair[1] == "direction"),
)
def test_a_model_trains_on_a_target_and_predicts_its_columns(
    model: str, target: str, tmp_path, write_candles, train: Callable[..., Any]
) -> None:
    bars = 14_000 if target == "volatility" else 3_000  # whose labels look a day ahead
    write_candles(tmp_path, "SIG-USD", bars=bars, signal=1.0)
    settings = keys_for({**SMALL, "batch": 8 if model == "tcn" else 64}, model=model, target=target)
    trained = train(tmp_path, tmp_path / "out", **settings)
    card = read_card(trained.file)
    assert card.model == f"{model}-{target}_SIG-USD_1m" and card.target == target
    assert card.metrics == trained.done["metrics"]
    assert headline_title(card.metrics) and len(shown(card.metrics)) == len(card.metrics["about"]["table"])
    assert all(np.isfinite(epoch["validation_loss"]) for epoch in card.training["history"])
    whole = predict_file(trained.file, tmp_path)
    assert whole[0].values.keys() == COLUMNS[target]
    assert all(np.isfinite(value) for said in whole for value in said.values.values())
    assert list(predict_file(trained.file, tmp_path, last=7)) == list(whole[-7:])  # bit for bit


@pytest.mark.nightly
@pytest.mark.parametrize("pair", CROSSED)
def test_a_planted_signal_is_found_in_the_crossings(pair: str) -> None:
    assert crossed(pair, seed=0, quick=True)["found"] > 0.9
