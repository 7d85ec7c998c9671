"""Schedule expressions, against instants worked out by hand."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from trainer.rehearsal.expressions import first_fire, next_fire, parse

NOON = datetime(2026, 11, 20, 12, 0, tzinfo=timezone.utc)  # a Friday


def at(day: int, hour: int, minute: int = 0, month: int = 11) -> datetime:
    return datetime(2026, month, day, hour, minute, tzinfo=timezone.utc)


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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cron(0 3 ? * SUN *)", at(22, 3)),
        ("cron(15 10 * * ? *)", at(21, 10, 15)),
        ("cron(0/20 12 ? * MON-FRI *)", at(20, 12, 20)),
        ("cron(0 0 1 JAN,DEC ? *)", at(1, 0, month=12)),
    ],
)
def test_a_cron_schedule_fires_at_the_next_minute_its_fields_allow(text: str, expected: datetime) -> None:
    assert first_fire(parse(text), NOON) == expected


def test_a_cron_schedule_that_names_no_day_never_fires() -> None:
    assert first_fire(parse("cron(0 0 1 1 ? 2020)"), NOON) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tomorrow",
        "at(2026-11-20T12:00:00Z)",
        "at(2026-02-31T12:00:00)",
        "rate(0 minutes)",
        "rate(5 seconds)",
        "rate(five minutes)",
        "cron(0 3 * * SUN *)",
        "cron(0 3 ? * SUN)",
        "cron(99 3 ? * SUN *)",
        "cron(0 3 L * ? *)",
    ],
)
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="Invalid Schedule Expression"):
        parse(text)


def test_an_unknown_time_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="Timezone"):
        parse("rate(1 hour)", "Mars/Olympus")
