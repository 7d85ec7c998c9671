"""Schedule expressions, against instants worked out by hand."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest

from trainer.rehearsal.schedule_expressions import Expression, next_fire, parse
from trainer.rehearsal.world import StoredSchedule
from trainer.retrains.recurrence import Recurrence

NOON = datetime(2026, 11, 20, 12, 0, tzinfo=timezone.utc)  # a Friday


def at(day: int, hour: int, minute: int = 0, month: int = 11) -> datetime:
    return datetime(2026, month, day, hour, minute, tzinfo=timezone.utc)


def first_fire(expression: Expression, start: datetime) -> datetime | None:
    own: dict[str, Any] = {"target": {}, "enabled": True, "delete_after_completion": True, "start": start}
    return StoredSchedule(group="g", name="s", expression=expression, **own).next_at


def test_a_one_time_schedule_fires_once_in_its_zone() -> None:
    expression = parse("at(2026-11-20T14:30:00)", "Europe/Berlin")
    assert first_fire(expression, NOON) == at(20, 13, 30)
    assert next_fire(expression, start=NOON, after=at(20, 13, 30)) is None


def test_a_one_time_schedule_in_the_past_fires_at_once() -> None:
    assert first_fire(parse("at(2026-11-20T11:00:00)"), NOON) == at(20, 11)


def test_a_rate_counts_from_its_start_and_skips_what_was_missed() -> None:
    expression = parse("rate(2 minutes)")
    assert first_fire(expression, NOON) == at(20, 12, 2)
    assert next_fire(expression, start=NOON, after=at(20, 12, 2)) == at(20, 12, 4)
    assert next_fire(expression, start=NOON, after=at(20, 12, 7)) == at(20, 12, 8)


def test_a_cron_of_a_retrain_fires_at_its_times() -> None:
    assert parse("cron(15 10 ? * MON,SAT *)") == Recurrence(weekdays=("MON", "SAT"), hour=10, minute=15)
    monthly = parse("cron(0 3 28 * ? *)", "America/New_York")
    assert first_fire(monthly, NOON) == at(28, 8)
    assert next_fire(monthly, start=NOON, after=at(28, 8)) == at(28, 8, month=12)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "at(2026-11-20T12:00:00Z)",
        "at(2026-02-31T12:00:00)",
        "rate(0 minutes)",
        "rate(5 seconds)",
        "rate(99999999999 days)",
        "cron(0 3 * * SUN *)",
        "cron(0 3 ? * SUN)",
        "cron(99 3 ? * SUN *)",
        "cron(0/20 3 ? * SUN *)",
        "cron(0 3 31 * ? *)",
    ],
)
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="Invalid Schedule Expression"):
        parse(text)


@pytest.mark.parametrize(
    ("text", "zone"),
    [
        ("at(0001-01-01T00:00:00)", "Asia/Tokyo"),  # no calendar has this instant
        ("at(9999-12-31T23:59:59)", "US/Eastern"),
        ("rate(1 hour)", "Mars/Olympus"),
    ],
)
def test_nonsense_with_a_time_zone_is_refused(text: str, zone: str) -> None:
    with pytest.raises(ValueError, match="Invalid Schedule Expression"):
        parse(text, zone)
