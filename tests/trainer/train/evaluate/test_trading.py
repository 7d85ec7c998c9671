"""The plain rule: by hand on a few bars, after costs, beside buying and holding."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from trainer.data.synthetic import synthetic_candles
from trainer.targets import TARGETS
from trainer.targets.position_account import account as account_of
from trainer.targets.trading import FEE, SLIPPAGE, read_traded
from trainer.train.evaluate.evaluation import Cells, reliability
from trainer.train.evaluate.trading import TradedBars, together, trade, traded_scores

DAY = 86_400 * 10**9
COST = FEE + SLIPPAGE


def rows(close: list[float], scored: list[int]) -> SimpleNamespace:
    candles = SimpleNamespace(close=np.array(close), timestamp=np.arange(len(close)) * DAY)
    return SimpleNamespace(candles=candles, scored=np.array(scored))


def by_day(bars: TradedBars) -> Cells:
    return Cells(of_bar=bars.times // DAY, length="1 day", times=bars.times)


def test_one_bar_ahead_the_rule_holds_where_the_forecast_is_up():
    target = TARGETS["direction"](horizon=1)
    bars = trade(np.array([0.9, 0.5, 0.6, 0.7]), target, rows([100, 110, 99, 99, 108.9, 1], [0, 1, 2, 3]))
    assert bars.gross == pytest.approx([0.1, 0, 0, 0.1])
    assert bars.turnover.tolist() == [1, 1, 1, 1], "bought, sold, bought, and sold at the end"
    assert bars.net.sum() == pytest.approx(0.2 - 4 * COST)
    assert bars.hold.sum() == pytest.approx(0.1 - 0.1 + 0 + 0.1 - 2 * COST)


def test_farther_ahead_each_bar_has_one_part_of_the_money():
    target = TARGETS["return"](horizon=2)
    bars = trade(np.array([1.0, -1.0, 1.0]), target, rows([100, 110, 110, 121, 121, 7], [1, 2, 3]))
    assert bars.exposure.tolist() == [0.5, 0.5, 0.5, 0.5], "of bars 1 to 4: each forecast is held for two"
    assert bars.turnover.tolist() == [0.5, 0, 0, 0.5]
    assert bars.gross == pytest.approx([0, 0.05, 0, 0.5 * (7 / 121 - 1)])


def test_a_bar_without_a_forecast_is_in_cash():
    target = TARGETS["direction"](horizon=1)
    bars = trade(np.array([0.9, 0.9]), target, rows([100, 110, 121, 133.1, 5], [0, 2]))
    assert bars.exposure.tolist() == [1, 0, 1] and bars.turnover.tolist() == [1, 1, 2]


def test_a_tie_of_the_future_neither_buys_nor_sells():
    """Bars 1, 2, 4 and 6 have no label, since the close will be the same: nobody knows that at the bar."""
    target, up = TARGETS["direction"](horizon=1), [0.9, 0.9, 0.1]
    closes = [100, 110, 110, 110, 121, 121, 5, 5, 7]
    bars = trade(np.array(up), target, rows(closes, [0, 3, 5]))
    assert bars.exposure.tolist() == [1, 1, 1, 1, 1, 0] and bars.turnover.sum() == 2
    bars = trade(np.array([*up, 0.9]), target, rows(closes, [0, 3, 5, 7]))
    assert bars.exposure.tolist() == [1, 1, 1, 1, 1, 0, 0, 1], "in cash before a tie, it stays there"
    missing = trade(np.array([0.9, 0.9]), target, rows([100, 110, 121, 121, 130, 140], [0, 4]))
    assert missing.exposure.tolist() == [1, 0, 0, 0, 1], "bars 1 and 2 have no forecast at all"


@pytest.mark.parametrize(
    ("name", "forecast"),
    [
        ("direction", [0.6, 0.5]),
        ("return", [0.01, 0.0]),
        ("quantiles", [[-1, 0.1, 1], [-1, 0.0, 9]]),
        ("barrier", [[0.2, 0.5, 0.3], [0.3, 0.4, 0.3]]),
    ],
)
def test_a_forecast_of_each_target_is_up_or_not(name, forecast):
    assert TARGETS[name]().is_long(np.array(forecast)).tolist() == [True, False]


def test_nobody_trades_on_a_volatility():
    target = TARGETS["volatility"](horizon_sessions=1)
    assert trade(np.zeros((2, 2)), target, rows([1, 2, 3, 4], [0, 1])) is None
    assert trade(np.zeros(0), TARGETS["direction"](), rows([1, 2], [])) is None


def test_several_series_share_the_money():
    target = TARGETS["direction"](horizon=1)
    first = trade(np.array([0.9, 0.9]), target, rows([100, 110, 121], [0, 1]))
    second = trade(np.array([0.1, 0.9]), target, rows([100, 100, 100, 200], [1, 2]))
    both = together([first, second])
    assert both.times.tolist() == [0, DAY, 2 * DAY]
    assert both.gross == pytest.approx([0.05, 0.05, 0.5]) and both.exposure.tolist() == [0.5, 0.5, 0.5]


def test_scores_are_sums_with_interval_and_return_shape():
    from scipy import stats  # late: each worker of pytest imports this file

    random = np.random.default_rng(0)
    close = 100 * np.exp(np.cumsum(random.normal(0, 0.01, 402)))
    target = TARGETS["direction"](horizon=1)
    bars = trade(random.random(400), target, rows(close.tolist(), list(range(400))))
    told, by_cell = traded_scores(bars, by_day(bars))
    net = bars.net
    found = read_traded({"test": {"trading": told}})
    assert found.net == pytest.approx(net.sum()) == pytest.approx(sum(by_cell["net"]))
    assert found.low < found.net < found.high
    assert found.beyond_low < found.net - found.hold < found.beyond_high
    assert found.sharpe == pytest.approx(net.mean() / net.std())
    shape = stats.skew(net), stats.kurtosis(net, fisher=False)
    assert (found.skew, found.kurtosis) == pytest.approx(shape) and found.skew and found.kurtosis != 3
    assert found.gross - COST * found.turnover == pytest.approx(found.net)
    assert by_cell["begins"] == sorted(set(by_cell["begins"])) and len(by_cell["net"]) == 400
    textbook = 1.96 * net.std() * np.sqrt(400)
    assert found.high - found.net == pytest.approx(textbook, rel=0.4)


def test_what_never_trades_has_no_sharpe_ratio():
    target = TARGETS["direction"](horizon=1)
    bars = trade(np.zeros(30), target, rows(np.linspace(1, 2, 32).tolist(), list(range(30))))
    told, _ = traded_scores(bars, by_day(bars))
    assert (told["net"], told["turnover"], told["sharpe"], told["kurtosis"]) == (0, 0, 0, 3)


def test_probabilities_that_come_true_are_reliable():
    random = np.random.default_rng(0)
    chances = random.random(6_000)
    honest, places = random.random(6_000) < chances, np.arange(6_000) // 40
    table = reliability(chances, honest, places)
    assert table["n"] == [600] * 10 and table["forecast"] == sorted(table["forecast"])
    inside = [low <= said <= high for said, low, high in zip(
        table["forecast"], table["low"], table["high"], strict=True)]  # fmt: skip
    assert sum(inside) >= 8
    bold = reliability(np.where(chances > 0.5, 0.99, 0.01), honest, places)
    assert bold["n"] == [int((chances <= 0.5).sum()), int((chances > 0.5).sum())]
    assert (
        bold["forecast"] == pytest.approx([0.01, 0.99]) and bold["low"][0] > 0.01 and bold["high"][1] < 0.99
    )


def test_equal_forecasts_group_and_few_cells_lack_an_interval():
    table = reliability(np.full(50, 0.5), np.arange(50) % 2 == 0, np.arange(50) // 25)
    assert table == {"n": [50], "forecast": [0.5], "happened": [0.5], "low": [None], "high": [None]}


def test_an_agent_trades_its_own_positions_at_its_own_costs():
    candles = synthetic_candles("AAA", bars=60, timeframe="1h", seed=5)
    target = TARGETS["position"](fee=0.002, slippage=0.0, spread=0.001)
    labels = target.label(candles, np.arange(60)).values_TK
    scored = np.concatenate([np.arange(10, 30), np.arange(35, 50)])  # with a hole
    forecast = target.forecast(np.random.default_rng(0).normal(size=(len(scored), target.outputs)), {})
    part = SimpleNamespace(
        candles=candles, scored=scored, labels=lambda bars: labels[bars].astype(np.float64)
    )
    bars, account = trade(forecast, target, part), account_of(target, forecast, part.labels(scored))
    assert len(bars.gross) == 40 and not bars.exposure[20:25].any()
    np.testing.assert_allclose(np.log1p(bars.gross[scored - 10]), account.gross, atol=1e-6)
    assert bars.turnover.sum() == pytest.approx(account.turnover.sum())
    assert bars.net.sum() == pytest.approx(bars.gross.sum() - 0.0025 * account.turnover.sum())
    whole = candles.open[51] / candles.open[11]
    assert np.log1p(bars.hold[1:-1]).sum() + np.log1p(bars.hold[[0, -1]] + 0.0025).sum() == pytest.approx(
        np.log(whole)
    )
    told, _ = traded_scores(bars, by_day(bars))
    assert (told["fee"], told["slippage"]) == (0.002, 0.0005)
