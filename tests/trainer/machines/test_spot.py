"""Spot as a risk and a saving: by hand, and against a simulation of the model."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from trainer.machines.spot import SpotBill, chance_to_finish, saved_usd

HOUR = 3600.0


def chance(seconds: float, limit: float, **changed: Any) -> float:
    known = {"restart_seconds": 600.0, "most_losses": 4, "per_hour": 0.1}
    return chance_to_finish(seconds=seconds, limit_seconds=limit, **{**known, **changed})


@pytest.mark.parametrize(
    ("seconds", "limit", "expected"),
    [
        (HOUR, HOUR - 1, 0.0),  # not even without interruption
        (HOUR, HOUR, math.exp(-0.1)),  # none is survived
        (HOUR, HOUR + 599, math.exp(-0.1)),
        (HOUR, HOUR + 600, math.exp(-0.1) * 1.1),  # one is
        (10 * HOUR, 99 * HOUR, math.exp(-1) * (1 + 1 + 1 / 2 + 1 / 6 + 1 / 24)),  # four are, as of any run
    ],
)
def test_as_many_losses_are_survived_as_fit(seconds: float, limit: float, expected: float) -> None:
    assert chance(seconds, limit) == pytest.approx(expected)


def test_without_checkpoints_a_lost_try_counts_in_full() -> None:
    one = math.exp(-0.1)
    limits = (HOUR, 2 * HOUR + 599, 2 * HOUR + 600)
    chances = [chance(HOUR, limit, keeps_checkpoints=False) for limit in limits]
    assert chances == pytest.approx([one, one, 1 - (1 - one) ** 2])


def test_the_chance_is_that_of_runs_that_are_played() -> None:
    """Interruptions of working time with exponential gaps, each at the cost of a restart."""
    player, ended = random.Random(30), 0
    for _ in range(20_000):
        left, clock, losses = 5 * HOUR, 0.0, 0
        while (gap := player.expovariate(0.1 / HOUR)) < left and losses <= 4:
            left, clock, losses = left - gap, clock + gap + 900, losses + 1
        ended += losses <= 4 and clock + left <= 5.5 * HOUR
    assert chance(5 * HOUR, 5.5 * HOUR, restart_seconds=900) == pytest.approx(ended / 20_000, abs=0.01)


def bill(low: float, high: float, *, taken: bool = False, price: float = 1.0) -> SpotBill:
    return SpotBill(
        seconds_low=low, seconds_high=high, usd_per_hour=price, on_demand_usd_per_hour=3.0, taken=taken
    )


def test_spot_saves_the_difference_of_the_prices() -> None:
    assert saved_usd([bill(HOUR, 2 * HOUR)], twice_seconds=0) == pytest.approx((2.0, 4.0))
    assert saved_usd([], twice_seconds=0) == (0, 0)


def test_what_was_computed_twice_is_no_saving() -> None:
    assert saved_usd([bill(HOUR, HOUR)], twice_seconds=600) == pytest.approx((1.5, 2.0))


@pytest.mark.parametrize(
    ("low", "high", "taken", "free"),
    [
        (3000, 3100, True, 3100 / HOUR),  # an hour that AWS interrupted may be free
        (3500, 3700, True, 1.0),  # perhaps within the first hour
        (3600, 3700, True, 0.0),
        (3000, 3100, False, 0.0),  # it ended itself
    ],
)
def test_an_interrupted_first_hour_may_be_free(low: float, high: float, taken: bool, free: float) -> None:
    least, most = saved_usd([bill(low, high, taken=taken)], twice_seconds=0)
    assert (least, most) == pytest.approx((low * 2 / HOUR, high * 2 / HOUR + free))


def test_spot_dearer_than_on_demand_saves_less_than_nothing() -> None:
    assert saved_usd([bill(HOUR, 2 * HOUR, price=4.0)], twice_seconds=0) == pytest.approx((-2.0, -1.0))
