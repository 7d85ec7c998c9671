"""A model and a target from outside the package are a line in a table each: they train, score, and predict as
ours do.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.jobs import job_of, keys_for
from tests.predictions import predict_file
from tests.trainer.outside.extremes import Extremes
from tests.trainer.outside.gru import GruSettings
from trainer.base.errors import DataError
from trainer.models import MODELS
from trainer.store.card import read_card
from trainer.targets import TARGETS

SMALL = {"hidden": 4, "layers": 1, "lookback": 20, "width": 4, "blocks": 2, "chunk": 64, "epochs": 2}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "target", "settings"),
    [
        pytest.param("gru", "direction", {"batch": 64}, marks=pytest.mark.nightly),
        ("gru", "extremes", {"batch": 64}),
        pytest.param("lstm", "extremes", {"batch": 64}, marks=pytest.mark.nightly),
        ("lstm", "extremes", {"batch": 64, "strategy": "fused"}),
        ("tcn", "extremes", {"batch": 8}),
    ],
)
def test_a_model_and_a_target_from_outside_train_and_predict(
    model, target, settings, tmp_path, write_candles, train, monkeypatch
):
    monkeypatch.setitem(MODELS, "gru", GruSettings)
    monkeypatch.setitem(TARGETS, "extremes", Extremes)
    write_candles(tmp_path, "SIG-USD", bars=3000, signal=1.0)
    keys = keys_for({**SMALL, **settings}, model=model, target=target)
    trained = train(tmp_path, tmp_path / "out", learning_rate=1e-2, **keys)
    card = read_card(trained.file)
    assert card.model == f"{model}-{target}_SIG-USD_1m" and card.lookback == trained.job.model.bars_seen
    assert card.training["history"][-1]["train_loss"] < card.training["history"][0]["train_loss"]
    if target == "extremes":
        assert "error (mean)" in [column["title"] for column in card.metrics["about"]["table"]]
        assert card.metrics["test"]["baselines"]["mean"]["error"] > 0
    found = predict_file(trained.file, tmp_path, last=3)
    assert all(np.isfinite(value) for one in found for value in one.values.values())
    assert found[0].values.keys() == ({"highest", "lowest"} if target == "extremes" else {"probability"})
    monkeypatch.undo()
    if "extremes" in card.model or "gru" in card.model:
        with pytest.raises(DataError, match="Predict with the Mayfly that made it"):
            predict_file(trained.file, tmp_path)


def test_an_unknown_model_or_target_is_refused():
    with pytest.raises(Exception, match="lstm, tcn"):
        job_of(model="gru")
    with pytest.raises(Exception, match="direction, volatility"):
        job_of(target="extremes")
