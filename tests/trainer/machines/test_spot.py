"""The chance of a run on spot: by hand, and against runs that are played."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from trainer.machines.spot import chance_to_finish, expected_loss

HOUR = 3600.0


def chance(seconds: float, limit: float, **changed: Any) -> float:
    known = {"restart_seconds": 600.0, "most_losses": 4, "keeps_checkpoints": True, "per_hour": 0.1}
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


@pytest.mark.parametrize(
    ("keeps", "lost"), [(True, 600.0), (False, 10 * HOUR * (math.e - 2) + 600 * (math.e - 1))]
)
def test_an_interruption_loses_a_restart_or_all_the_work(keeps: bool, lost: float) -> None:
    """One is expected, of one machine in ten hours, or of two in five."""
    known = {"restart_seconds": 600.0, "keeps_checkpoints": keeps}
    assert expected_loss(seconds=10 * HOUR, **known) == pytest.approx(lost)  # type: ignore[arg-type]
    if keeps:
        assert expected_loss(seconds=5 * HOUR, machines=2, **known) == pytest.approx(lost)  # type: ignore[arg-type]


def test_a_year_without_checkpoints_has_a_loss_beyond_any_limit() -> None:
    """Its plan says so, instead of failing at a number that no float holds."""
    lost = expected_loss(seconds=8760 * HOUR, restart_seconds=600.0, keeps_checkpoints=False)
    assert 1e20 < lost < math.inf


def test_the_chance_is_that_of_runs_that_are_played() -> None:
    """Interruptions of working time with exponential gaps, each at the cost of a restart."""
    player, ended = random.Random(30), 0
    for _ in range(20_000):
        left, clock, losses = 5 * HOUR, 0.0, 0
        while (gap := player.expovariate(0.1 / HOUR)) < left and losses <= 4:
            left, clock, losses = left - gap, clock + gap + 900, losses + 1
        ended += losses <= 4 and clock + left <= 5.5 * HOUR
    assert chance(5 * HOUR, 5.5 * HOUR, restart_seconds=900) == pytest.approx(ended / 20_000, abs=0.01)
