"""An agent's account against a loop written out by hand, its policy against probabilities, and its settings."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from trainer.base.errors import DataError, UsageError
from trainer.targets.position import BASIS, Position
from trainer.targets.position_account import account, drawdown, follows
from trainer.targets.position_policy import (
    combined,
    greedy,
    log_chances,
    mean_and_log_deviation,
    value,
)

KINDS = pytest.mark.parametrize(
    "target",
    [
        Position(),
        Position(short=False, levels=4, limit=0.5),
        Position(actions="continuous"),
        Position(actions="continuous", short=False, limit=0.5, fee=0.002, spread=0.001),
    ],
    ids=["discrete", "long", "continuous", "continuous-long"],
)


def labels_of(returns: np.ndarray, *, holes: tuple[int, ...] = ()) -> np.ndarray:
    """Return labels (N, 3) of log returns; before each of the bars `holes` there is a hole."""
    begins = 60.0 * (
        np.arange(len(returns) + 1) + np.searchsorted(holes, np.arange(len(returns) + 1), "right")
    )
    following = begins[:-1] + 60
    return np.stack([returns, begins[:-1], following], axis=1)


def by_hand(target: Position, forecast: np.ndarray, labels: np.ndarray) -> list[float]:
    """Return the growth of each bar, step by step."""
    made, held = [], 0.0
    for bar, (log_return, begins, _) in enumerate(labels):
        if bar and labels[bar - 1, 2] != begins:
            held = 0.0
        position = float(np.interp(held, target.positions, forecast[bar]))
        left = 1 + position * math.expm1(log_return)
        ruined = left <= 1e-3
        growth = math.log(1 - target.cost * abs(position - held)) + math.log(max(left, 1e-3))
        is_last = bar == len(labels) - 1 or labels[bar, 2] != labels[bar + 1, 1]
        if is_last and not ruined:
            growth += math.log(1 - target.cost * abs(position))
        made.append(growth)
        held = 0.0 if ruined else position
    return made


@KINDS
def test_an_account_equals_one_by_hand(target):
    random = np.random.default_rng(0)
    returns = random.normal(0, 0.02, 400)
    returns[100:120] = math.log(3.0)  # ruins whoever is short
    labels = labels_of(returns, holes=(50, 51, 300))
    outputs = random.normal(size=(400, target.outputs)) * 2
    forecast = target.forecast(outputs, {})
    made = account(target, forecast, labels)
    np.testing.assert_allclose(made.growth, by_hand(target, forecast, labels), rtol=0, atol=1e-12)
    assert (made.growth.min() < math.log(2e-3)) == target.short
    assert not follows(labels)[[0, 50, 51, 300]].any() and follows(labels).sum() == 396
    assert abs(made.position).max() <= target.limit and made.position.min() >= (-target.limit * target.short)


@pytest.mark.parametrize("bars", [1, 2, 3, 5, 16, 17, 24])
def test_an_account_of_any_length_equals_one_by_hand(bars):
    random, target = np.random.default_rng(bars), Position(levels=5, limit=0.7)
    labels = labels_of(random.normal(0, 0.02, bars), holes=(bars // 2,))
    forecast = target.forecast(random.normal(size=(bars, target.outputs)), {})
    made = account(target, forecast, labels)
    np.testing.assert_allclose(made.growth, by_hand(target, forecast, labels), rtol=0, atol=1e-12)


@KINDS
def test_the_regret_is_what_the_best_position_gains_more(target) -> None:
    outputs = torch.randn(6, target.outputs, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    returns, held = [0.02, -0.01, 0.0, 0.001, -0.03, 0.004], torch.tensor(target.positions)

    def gain(have: float, take: float, log_return: float) -> float:
        return math.log1p(-target.cost * abs(take - have)) + math.log1p(take * math.expm1(log_return))

    wanted = []
    for row, log_return in zip(outputs, returns, strict=True):
        missed = []
        for place, have in enumerate(target.positions):
            gains = [gain(have, take, log_return) for take in target.positions]
            if target.is_continuous:
                mean, _ = mean_and_log_deviation(target, row, held[place].double())
                made = gain(have, float(mean), log_return)
            else:
                chances = log_chances(target, row, torch.tensor(place)).exp().tolist()
                made = math.fsum(chance * each for chance, each in zip(chances, gains, strict=True))
            missed.append(max(0.0, max(gains) - made))
        wanted.append(BASIS * math.fsum(missed) / len(missed))
    labels = torch.tensor([[one, 0.0, 60.0] for one in returns], dtype=torch.float64)
    assert target.loss(outputs, labels).tolist() == pytest.approx(wanted)


def test_half_the_spread_is_paid() -> None:
    assert Position(fee=0.001, slippage=0.0005, spread=0.002).cost == pytest.approx(0.0025)


def test_the_average_is_of_the_bars_so_far_at_most(make_candles) -> None:
    target, bars = Position(average_bars=4, short=False), np.arange(6)
    candles = make_candles(8, close=[1.0, 2.0, 1.6, 1.2, 4.0, 2.1, 2.0, 2.0])
    rows = SimpleNamespace(candles=candles, scored=bars)
    average = target.baselines(rows)["average"]  # type: ignore[arg-type]
    means = [candles.close[max(0, bar - 3) : bar + 1].mean() for bar in bars]
    assert average[:, 0].tolist() == (candles.close[bars] > means).astype(float).tolist()
    assert average[:, 0].tolist() == [0, 1, 1, 0, 1, 0]


def test_ruin_starts_anew_and_costs_no_closing():
    target = Position()
    returns = np.array([0.0, math.log(2.5), 0.0])
    made = account(target, np.full((3, 3), -1.0), labels_of(returns))
    assert made.held.tolist() == [0.0, -1.0, 0.0], "none after the ruin"
    assert made.growth[1] == pytest.approx(math.log(1e-3))


def test_twice_the_cost_lowers_growth_as_arithmetic_says():
    random = np.random.default_rng(1)
    labels = labels_of(random.normal(0, 0.01, 500), holes=(200,))
    once, twice = Position(), Position(fee=0.0020, slippage=0.0010)
    assert twice.cost == 2 * once.cost
    forecast = once.forecast(random.normal(size=(500, once.outputs)), {})
    one, two = account(once, forecast, labels), account(twice, forecast, labels)
    closed = one.turnover - abs(one.position - one.held)
    for made, cost in ((one, once.cost), (two, twice.cost)):
        paid = np.log1p(-cost * abs(one.position - one.held)) + np.log1p(-cost * closed)
        np.testing.assert_allclose(made.growth, made.gross + paid, atol=1e-14)
    assert np.array_equal(one.position, two.position) and np.array_equal(one.gross, two.gross)
    assert one.growth.sum() - two.growth.sum() == pytest.approx(once.cost * one.turnover.sum(), rel=0.01)


def test_chances_and_values_are_of_the_position_held():
    target = Position()
    outputs = torch.randn(5, target.outputs, dtype=torch.float64)
    for held in range(3):
        places = torch.full((5,), held)
        logits = outputs[:, 3 * held : 3 * held + 3]
        torch.testing.assert_close(log_chances(target, outputs, places), logits.log_softmax(-1))
        torch.testing.assert_close(value(target, outputs, places), outputs[:, 9 + held])
        best = torch.tensor(target.positions, dtype=torch.float64)[logits.argmax(-1)]
        assert torch.equal(greedy(target, outputs)[:, held], best)


def test_means_and_values_of_shares_lie_between_knots():
    target = Position(actions="continuous", limit=0.5)
    outputs = torch.randn(4, target.outputs, dtype=torch.float64)
    held = torch.tensor([-0.5, -0.25, 0.1, 0.5], dtype=torch.float64)
    mean, deviation = mean_and_log_deviation(target, outputs, held)
    for place, share in enumerate(held.tolist()):
        knots = 0.5 * outputs[place, :3].tanh().numpy()
        assert float(mean[place]) == pytest.approx(np.interp(share, target.positions, knots))
        expected = np.interp(share, target.positions, outputs[place, 3:6].numpy())
        assert float(value(target, outputs, held)[place]) == pytest.approx(expected)
    assert bool((mean.abs() <= 0.5).all()) and deviation.shape == (4,)


@KINDS
def test_several_networks_act_by_their_mean(target):
    outputs = torch.randn(3, 7, target.outputs, dtype=torch.float64)
    one = combined(target, outputs)
    assert one.shape == (7, target.outputs)
    if target.is_continuous:
        torch.testing.assert_close(greedy(target, one), greedy(target, outputs).mean(0))
    else:
        held = torch.zeros(7, dtype=torch.int64)
        each = torch.stack([log_chances(target, network, held).exp() for network in outputs])
        torch.testing.assert_close(log_chances(target, one, held).exp(), each.mean(0))


def test_networks_that_all_take_a_limit_have_a_mean():
    """In float32 the tanh of 10 is 1, whose inverse is infinite."""
    target = Position(actions="continuous")
    for sign in (-1, 1):
        one = combined(target, sign * torch.full((3, 2, target.outputs), 10.0))
        assert target.forecast(one.numpy(), {}) == pytest.approx(sign * np.ones((2, 3)), abs=1e-6)


def test_a_policy_that_never_trades_earns_nothing():
    target = Position()
    labels = labels_of(np.random.default_rng(2).normal(0, 0.01, 100))
    scores = target.scores(np.zeros((100, 3)), labels)
    assert [scores[name] for name in ("growth", "traded_share", "invested", "drawdown", "sharpe_ratio")] == [
        0.0
    ] * 5


@KINDS
def test_outputs_that_are_no_numbers_are_no_positions(target):
    labels, outputs = labels_of(np.zeros(5)), np.zeros((5, target.outputs))
    outputs[3, 0] = np.nan
    forecast = target.forecast(outputs, {})
    assert np.isnan(forecast).any(axis=1).tolist() == [False, False, False, True, False]
    assert math.isnan(target.loss_of_span(outputs, labels))
    columns = target.columns(outputs, None, np.arange(5), {})
    with pytest.raises(DataError, match="not numbers"):
        target.columns_of_held(columns, 0.0)


@pytest.mark.parametrize("limit", [0.001, 0.01, 1.0])
def test_deviations_have_the_size_of_the_limit(limit):
    target = Position(actions="continuous", limit=limit)
    outputs = torch.zeros(target.outputs, dtype=torch.float64, requires_grad=True)
    _, log_deviation = mean_and_log_deviation(target, outputs, torch.tensor(0.0, dtype=torch.float64))
    assert log_deviation.exp().item() == pytest.approx(limit * math.exp(-1))
    log_deviation.backward()
    assert outputs.grad[-1] == 1, "it can be learnt"


@pytest.mark.parametrize("limit", [0.03, 0.05, 0.1, 0.3, 0.7, 1.0])
@pytest.mark.parametrize("short", [True, False])
def test_flat_is_exactly_0_and_the_ends_are_the_limit(limit, short):
    for levels in range(3, 22, 2):
        target = Position(levels=levels, limit=limit, short=short)
        assert (target.positions[target.flat], target.positions[-1]) == (0, limit)
        assert target.positions[0] == (-limit if short else 0) and len(target.positions) == levels
        assert np.diff(target.positions) == pytest.approx((1 + short) * limit / (levels - 1))
        target.check_held(limit)
        assert "held_0" in target.columns(np.zeros((1, target.outputs)), None, np.zeros(1), {})


def test_what_is_held_decides_what_to_hold():
    columns = {"held_-1": np.array([0.0]), "held_0": np.array([1.0]), "held_1": np.array([-1.0])}
    for held, position in ((-1.0, 0.0), (-0.4, 1.0), (0.9, -1.0)):
        made = Position().columns_of_held(columns, held)
        assert made["position"].tolist() == [position] and made["trade"].tolist() == [position - held]
    (between,) = Position(actions="continuous").columns_of_held(columns, 0.5)["position"]
    assert between == 0.0


def test_growth_is_in_basis_points_and_drawdown_a_share():
    target, labels = Position(), labels_of(np.log([1.1, 0.5, 1.2]))
    scores = target.scores(np.ones((3, 3)), labels)
    net = math.log(1.1 * 0.5 * 1.2) + 2 * math.log(1 - target.cost)
    assert scores["growth"] == pytest.approx(BASIS * net / 3)
    assert scores["drawdown"] == pytest.approx(0.5)
    assert drawdown(np.log([1.1, 1.1])) == 0.0


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"fee": 0.0, "slippage": 0.0}, "without trading costs"),
        ({"levels": 4}, "odd number with target.short"),
        ({"fill": "yesterday"}, "one of next_open, close"),
        ({"limit": 2.0}, "at most 1"),
    ],
)
def test_impossible_settings_are_refused_in_a_line(keys, message):
    with pytest.raises(UsageError) as caught:
        Position(**keys)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_plan_is_told_how_it_trades_and_what_it_pays():
    assert Position(spread=0.0004).words == (
        "an agent trades its own positions, -1 to 1, filled at the next bar's open;"
        " fee 0.1 %, slippage 0.05 %, spread 0.04 %"
    )
    assert "a close that it has seen, so it gets no mark; fee" in Position(fill="close", short=False).words


def test_trading_at_a_seen_close_decides_nothing():
    target = Position(fill="close")
    assert target.about()["proper"] == [] and target.bars_ahead == 1 and "seen" in target.about()["rule"]
    assert Position().about()["proper"] == ["growth"] and Position().bars_ahead == 2
