from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import get_args

import pytest

from trainer.runs.deadline import CAUSES, REMEDIES, Cause, TimeLimit, deadline_from, time_limit

NOON = datetime(2026, 11, 20, 12, 0, 0, 900_000, tzinfo=timezone.utc)


def limit(minutes: float, **others: float) -> TimeLimit:
    run = TimeLimit(duration=timedelta(minutes=minutes), cause="max_duration")
    return time_limit(**({"run": run, "budget_usd": 0.0, "on_demand_usd_per_hour": 12.24} | others))


@pytest.mark.parametrize(
    ("others", "minutes", "cause"),
    [
        ({}, 60, "max_duration"),
        ({"budget_usd": 6.12}, 30, "budget"),
        ({"budget_usd": 100.0}, 60, "max_duration"),
        ({"default_seconds": 1200.0}, 20, "default_duration"),
        ({"default_seconds": 1200.0, "budget_usd": 1.02}, 5, "budget"),
        ({"default_seconds": 3600.0, "budget_usd": 12.24}, 60, "max_duration"),
        ({"estimate_seconds": 2400.0}, 40, "estimate"),
        ({"estimate_seconds": 2400.0, "budget_usd": 6.12}, 30, "budget"),
        ({"estimate_seconds": 7200.0}, 60, "max_duration"),
    ],
)
def test_the_shortest_limit_holds_and_names_itself(others, minutes, cause):
    found = limit(60, **others)
    assert (found.duration, found.cause) == (timedelta(minutes=minutes), cause)


def test_an_instant_carries_no_fraction_and_is_never_late():
    at = deadline_from(NOON, limit(60, budget_usd=6.12)).at
    assert at == datetime(2026, 11, 20, 12, 30, 0, tzinfo=timezone.utc)


def test_every_cause_has_its_words_and_its_remedy():
    assert set(CAUSES) == set(REMEDIES) == set(get_args(Cause))
