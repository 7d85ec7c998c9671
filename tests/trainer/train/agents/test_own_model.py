"""An agent whose network is a user's own class."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.predictions import predict_file
from trainer.store.card import read_card

NET = Path(__file__).resolve().parents[4] / "examples" / "own-model" / "my_net.py"


@pytest.mark.nightly
def test_an_agent_of_a_users_own_class_trains_and_acts(
    tmp_path, write_candles, train: Callable[..., Any]
) -> None:
    write_candles(tmp_path, "SIG-USD", bars=2_500, signal=1.0)
    digest = hashlib.sha256(NET.read_bytes()).hexdigest()
    keys = {"model.lookback": 8, "model.hidden": 4, "model.sha256": digest, "batch": 64, "epochs": 1}
    trained = train(tmp_path, tmp_path / "out", model=f"{NET}:MyNet", target="position", **keys)
    card = read_card(trained.file)
    assert card.target == "position" and card.training["agent"]["lanes"] == 16
    rows = predict_file(trained.file, tmp_path, last=3, model_file=NET)
    assert all(set(row.values.values()) <= {-1.0, 0.0, 1.0} for row in rows)
