"""Marks of agents: rarely for policies on random walks, for one that knows, and for none that knows too much."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.models import losses_of
from trainer.data.read.candles import Candles
from trainer.targets.gate import GateRule, decide
from trainer.targets.marks import judge
from trainer.targets.position import Position
from trainer.targets.scoring import Rows
from trainer.train.evaluate.evaluation import evaluate

HOUR = 3_600 * 10**9
BARS = 720  # thirty days, as many cells
FREE = {"fee": 1e-7, "slippage": 0.0}  # costs that hide no luck


def walk(seed: int) -> Candles:
    """Return hourly bars of a random walk that open where the one before closed."""
    close = 100 * np.exp(np.cumsum(np.random.default_rng(seed).normal(0, 0.01, BARS + 3)))
    open_, volume = np.concatenate([[100.0], close[:-1]]), np.ones(BARS + 3)
    high, low = np.maximum(open_, close), np.minimum(open_, close)
    return Candles(
        symbol="W", timeframe="1h", timestamp=np.arange(BARS + 3) * HOUR,
        open=open_, high=high, low=low, close=close, volume=volume,
    )  # fmt: skip


def rows_of(target: Position, candles: Candles) -> Rows:
    labels = target.label(candles, candles.timestamp).values_TK
    scored = np.arange(BARS)
    return Rows(
        candles=candles, clock=candles.timestamp, labels_TK=labels, fitted={},
        train=scored[:1], scored=scored, features=lambda bars: np.zeros((len(bars), 1), dtype=np.float32),
    )  # fmt: skip


def policy(target: Position, seed: int) -> np.ndarray:
    """Return positions (N, P) of a policy that knows nothing, and changes its mind every 1 to 60 bars."""
    random = np.random.default_rng(10_000 + seed)
    every = int(random.integers(1, 60))
    outputs = random.normal(size=(BARS // every + 1, target.outputs))
    return target.forecast(np.repeat(outputs, every, axis=0)[:BARS], {})


def metrics_of(target: Position, forecast: np.ndarray, rows: Rows) -> dict[str, Any]:
    return {"about": target.about(), "test": evaluate(forecast, target, rows).scores}


def marks_on_walks(number: int, **keys: Any) -> list[str]:
    """Return the marks of policies, each alone on a walk of its own."""
    target = Position(**keys)
    made = []
    for seed in range(number):
        rows = rows_of(target, walk(seed))
        (one,) = judge([metrics_of(target, policy(target, seed), rows)])
        made.append(one.mark)
    return made


@pytest.mark.parametrize("costs", [FREE, {}], ids=["free", "costs"])
def test_policies_on_random_walks_are_rarely_marked(costs):
    assert marks_on_walks(10, **costs).count("better") <= 2


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("costs", "most"), [(FREE, 0.05), ({**FREE, "actions": "continuous"}, 0.05), ({}, 0.005)]
)
def test_two_hundred_policies_are_marked_at_the_stated_rate(costs, most):
    marks = marks_on_walks(200, **costs)
    assert len(marks) == 200 and marks.count("better") <= most * 200


def test_a_policy_that_never_trades_equals_flat_and_gets_no_mark():
    target = Position()
    tested = metrics_of(target, np.zeros((BARS, 3)), rows_of(target, walk(0)))
    (one,) = judge([tested])
    assert one.mark in ("no different", "worse")
    assert tested["test"]["better"]["flat"]["growth"]["gain"] == 0
    assert tested["test"]["growth"] == tested["test"]["baselines"]["flat"]["growth"] == 0


def knowing(target: Position, rows: Rows) -> np.ndarray:
    """Return the positions (N, P) of one who knows the bar that is held."""
    moves = rows.labels(rows.scored)[:, 0]
    return np.repeat(np.where(moves > 0, 1.0, -1.0)[:, None], len(target.positions), axis=1)


@pytest.mark.parametrize(("fill", "mark"), [("next_open", "better"), ("close", None)])
def test_who_knows_is_marked_unless_it_trades_at_a_seen_close(fill, mark):
    target = Position(fill=fill)
    rows = rows_of(target, walk(1))
    (one,) = judge([metrics_of(target, knowing(target, rows), rows)])
    assert (one and one.mark) == mark


def test_who_trades_at_a_seen_close_is_never_promoted():
    for fill, promote in (("next_open", True), ("close", False)):
        target = Position(fill=fill)
        rows = rows_of(target, walk(1))
        tested = evaluate(knowing(target, rows), target, rows)
        losses = losses_of(tested)
        poor = losses_of(evaluate(policy(target, 0), target, rows))
        for champion in (None, poor):
            decision = decide(
                target, GateRule(least_cells=20), challenger=losses, champion=champion, challenge=1
            )
            assert decision.promote == promote, decision.reason


def test_a_moving_average_knows_no_later_bar():
    target, candles = Position(average_bars=20), walk(2)
    made = target.baselines(rows_of(target, candles))["average"]
    later = candles.close.copy()
    later[401:] *= np.random.default_rng(0).uniform(0.5, 2, len(later) - 401)
    again = target.baselines(rows_of(target, replace(candles, close=later)))["average"]
    assert np.array_equal(made[:401], again[:401]) and not np.array_equal(made, again)
    mean = candles.close[381:401].mean()
    assert made[400].tolist() == [1.0 if candles.close[400] > mean else -1.0] * 3


def test_equity_by_cell_follows_from_the_losses_of_a_card():
    target = Position()
    rows = rows_of(target, walk(3))
    tested = evaluate(policy(target, 3), target, rows)
    sums = tested.losses["sums"]["growth"]
    assert sum(sums["model"]) / BARS == pytest.approx(tested.scores["growth"])
    assert sum(sums["hold"]) / BARS == pytest.approx(tested.scores["baselines"]["hold"]["growth"])
