"""Tables of what a plain rule made, deflated by all models tried, and of how reliable probabilities are."""

from __future__ import annotations

from dataclasses import replace

from tests.trainer.store.test_weights import CARD
from tests.trainer.targets.test_trading import TOLD
from trainer.cli.views.drawing import drawn
from trainer.cli.views.models import comparison_view
from trainer.cli.views.table import lines
from trainer.cli.views.trading import TradedTable, equity_lines, traded_json
from trainer.store.comparison import Side
from trainer.targets import TARGETS
from trainer.targets.trading import deflate, read_traded

GROUPS = {
    "n": [600, 600],
    "forecast": [0.4, 0.6],
    "happened": [0.45, 0.55],
    "low": [0.41, None],
    "high": [0.5, None],
}


def metrics(**changed):
    return {"test": {"trading": {**TOLD, **changed}}}


def table_of(*models, trials=None):
    named = [({"piece": f"S{number}"}, its) for number, its in enumerate(models)]
    return TradedTable(named, trials=trials)


def test_a_row_has_the_rule_beside_holding_and_luck():
    table = table_of(metrics(sharpe=0.12), metrics(net=-0.2, gross=-0.1, low=None, high=None), {})
    text = drawn(table.table(30), width=110)
    first, second = text.splitlines()[1:]
    assert first.split() == [
        "S0",
        "+10.0",
        "%",
        "[-5.0,",
        "+25.0]",
        "+2.0",
        "%",
        "200.0",
        "x",
        "0.200",
        "%",
        first.split()[-1],
    ]
    assert second.split()[:4] == ["S1", "-20.0", "%", "+2.0"] and "never" in second
    share = deflate([read_traded(metrics(sharpe=0.12)), read_traded(metrics())])[0]
    assert 0.5 < share < 0.99 and first.endswith(f"{share:.2f}")
    told = " ".join(table.legend())
    assert "fee 0.10 %, slippage 0.05 %" in told and "with 2 models tried; 1 reach 0.95" in told
    assert max(map(len, table.legend())) <= 100
    small = " ".join(table_of(metrics(fee=1e-5, slippage=0.0)).legend())
    assert "fee 0.001 %, slippage 0.00 %" in small


def test_trials_that_are_alike_deflate_less():
    models = (metrics(sharpe=0.12), metrics())
    assert "> 0.99" in drawn(table_of(*models, trials=1.0).table(30), width=110)
    assert "worth 1.25 independent ones; 1 reach" in " ".join(table_of(*models, trials=1.25).legend())
    assert "with 1 model tried; " in " ".join(table_of(models[0], trials=1.0).legend())


def test_trials_of_a_search_are_independent_ones():
    searched = {**metrics(sharpe=0.12), "about": {"tried": 4}}
    table = table_of(searched, searched, trials=1.25)
    assert "with 8 models tried, worth 7.25 independent ones; " in " ".join(table.legend())
    assert "with 8 models tried; " in " ".join(table_of(searched, searched, trials=2.0).legend())


def test_the_first_models_are_shown_and_all_are_deflated():
    table = table_of(*[metrics(sharpe=number / 100) for number in range(40)])
    text = drawn(table.table(30), width=110)
    assert "S29" in text and "S30" not in text and "with 40 models" in " ".join(table.legend())


def test_a_model_that_never_traded_has_no_sharpe_ratio():
    text = drawn(table_of(metrics(turnover=0.0, gross=0.0, net=0.0, sharpe=0.0)).table(30), width=110)
    assert "0.0 x" in text and "never" in text and "deflated" not in text


def test_nothing_is_shown_where_nobody_trades():
    assert not table_of({}, {"test": {"trading": {"net": 1}}})


def card(**fields):
    return replace(CARD, metrics={**CARD.metrics, **metrics()}, reliability={"up": GROUPS}, **fields)


def test_one_side_alone_has_its_trades_and_its_reliability():
    side = Side(name="run-1", cards=(card(),), dollars=1.0, seconds=60.0)
    text = drawn(comparison_view([side], "", [], trials=1.0), width=110)
    assert text.splitlines()[0].split() == ["run", "or", "model", "models", "spent", "time"]
    for part in (
        "+10.0 % [-5.0, +25.0]",
        "0.400  0.450 [0.410, 0.500]   600",
        "0.600                 0.550   600",
        ": up",
    ):
        assert part in text, text
    (told,) = traded_json([side], 1.0)
    assert told["side"] == "run-1" and told["net"] == 0.1 and told["break_even"] == 0.002
    assert 0 < told["deflated"] < 1


def test_equity_by_cell_is_drawn_small():
    one = card(trades={"begins": [0, 86_400, 172_800], "net": [0.1, -0.3, 0.25]})
    text = drawn(lines(*equity_lines([one, card(trades={})])), width=110).split()
    assert text[:4] == ["piece", "equity", "end", "lowest"] and text[5] == "▆█▁▇"
    assert text[6:] == ["+5.0", "%", "-20.0", "%"]


def test_a_side_tells_how_many_of_its_models_are_worth_using():
    gain = {"gain": 0.01, "error": 0.001, "freedom": 20}
    test = {"cells": 200, "better": {"base_rate": {"log_loss": gain, "brier": gain}}}
    good = {"about": TARGETS["direction"]().about(), "test": test}
    poor = {
        **good,
        "test": {**test, "better": {"base_rate": {"log_loss": {**gain, "gain": -0.01}, "brier": gain}}},
    }
    side = Side(name="run-1", cards=(card(), replace(CARD, metrics=good), replace(CARD, metrics=poor)))
    text = drawn(comparison_view([side], "", [], trials=1.0), width=110).splitlines()
    assert text[0].split()[3:] == ["models", "worth", "using"] and text[1].split() == ["run-1", "3", "1"]
