from __future__ import annotations

import pytest

from trainer.job.model_names import ModelName, label, read_name


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("lstm-direction_BTC-USD_1m", ("lstm", "direction", "BTC-USD", "1m", None, None)),
        ("lstm_BTC-USD_1m", ("lstm", "", "BTC-USD", "1m", None, None)),  # of before there were targets
        ("lstm_BTC-USD_1m_f2_s11", ("lstm", "", "BTC-USD", "1m", 2, 11)),
        ("tcn-volatility_BRK_B_tick2800_f10_s0", ("tcn", "volatility", "BRK_B", "tick2800", 10, 0)),
        ("lstm-return_ES_f1_tick2800", ("lstm", "return", "ES_f1", "tick2800", None, None)),
    ],
)
def test_a_name_and_its_parts_are_one_thing(text, parts):
    family, target, symbol, timeframe, fold, seed = parts
    name = ModelName(family=family, target=target, symbol=symbol, timeframe=timeframe, fold=fold, seed=seed)
    assert str(name) == text and read_name(text) == name


def test_draws_are_the_name_without_target_fold_and_seed():
    for name in ("lstm-direction_BTC-USD_1m_f2_s1", "lstm_BTC-USD_1m"):
        assert read_name(name).draws == "lstm_BTC-USD_1m"


def test_a_foreign_name_is_listed_with_what_it_has():
    assert read_name("something").symbol == "something"
    assert read_name("lstm_X") == ModelName(family="lstm", symbol="X", timeframe="")


def test_people_see_fold_and_seed_only_where_there_are_several():
    assert label("BTC-USD", fold=1, seed=0, models_per_symbol=1) == "BTC-USD"
    assert label("BTC-USD", fold=2, seed=1, models_per_symbol=4) == "BTC-USD f2 s1"
