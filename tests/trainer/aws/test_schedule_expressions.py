"""Schedule expressions, against instants worked out by hand."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from trainer.aws.schedule_expressions import (
    Cron,
    first_fire,
    last_time,
    next_fire,
    next_times,
    parse,
    skipped_times,
)

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
        ("cron(0 3 L * ? *)", at(30, 3)),
        ("cron(0 3 ? * L *)", at(21, 3)),
        ("cron(0 3 ? * 6L *)", at(27, 3)),
        ("cron(0 3 ? * MON#4 *)", at(23, 3)),
        ("cron(0 3 ? * 3#1 *)", at(1, 3, month=12)),
        ("cron(0 3 28W * ? *)", at(27, 3)),  # the 28th is a Saturday
        ("cron(0 3 29W * ? *)", at(30, 3)),  # the 29th is a Sunday
        ("cron(0 3 1W * ? *)", at(1, 3, month=12)),
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
        "cron(0 3 L,3 * ? *)",
        "cron(0 3 LW * ? *)",
        "cron(0 3 32W * ? *)",
        "cron(0 3 ? * 8L *)",
        "cron(0 3 ? * SUN#6 *)",
        "cron(0 3 ? * SUN#1,SUN#3 *)",
        "cron(0 3 ? * XXXL *)",
        "cron(? 3 ? * SUN *)",
        "cron(1- 3 ? * SUN *)",
        "rate(99999999999 days)",
    ],
)
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="Invalid Schedule Expression"):
        parse(text)


@pytest.mark.parametrize(
    ("text", "zone"), [("at(0001-01-01T00:00:00)", "Asia/Tokyo"), ("at(9999-12-31T23:59:59)", "US/Eastern")]
)
def test_an_instant_that_no_calendar_has_is_refused(text: str, zone: str) -> None:
    with pytest.raises(ValueError, match="Invalid Schedule Expression"):
        parse(text, zone)


def test_a_refused_field_is_named() -> None:
    with pytest.raises(ValueError, match="The field day of week cannot be 'SUND'.$"):
        parse("cron(0 3 ? * SUND *)")


@pytest.mark.parametrize("zone", ["Mars/Olympus", "America", "../UTC", "x" * 300])
def test_an_unknown_time_zone_is_refused(zone: str) -> None:
    with pytest.raises(ValueError, match="Timezone"):
        parse("rate(1 hour)", zone)


@pytest.mark.parametrize(
    ("rule", "month", "expected"),
    [
        ("1W", 8, 3),
        ("31W", 10, 30),
        ("31W", 1, 29),
    ],  # 2026-08-01 is a Saturday, 2026-10-31 too, 2027-01-31 a Sunday
)
def test_the_nearest_weekday_stays_in_its_month(rule: str, month: int, expected: int) -> None:
    fires = first_fire(parse(f"cron(0 3 {rule} {month} ? *)"), datetime(2026, 7, 1, tzinfo=timezone.utc))
    assert fires is not None and (fires.month, fires.day) == (month, expected)


def test_a_local_time_that_a_clock_change_skips_does_not_fire_and_is_named() -> None:
    sundays = parse("cron(30 2 ? * SUN *)", "America/New_York")
    assert isinstance(sundays, Cron)
    assert next_times(sundays, datetime(2027, 3, 1, tzinfo=timezone.utc), 2) == [
        datetime(2027, 3, 7, 7, 30, tzinfo=timezone.utc),
        datetime(2027, 3, 21, 6, 30, tzinfo=timezone.utc),  # on the 14th clocks went from 2:00 to 3:00
    ]
    assert skipped_times(sundays, NOON, days=366) == [datetime(2027, 3, 14, 2, 30)]
    assert skipped_times(sundays, NOON, days=30) == []


def test_a_local_time_that_a_clock_change_repeats_fires_once() -> None:
    sundays = parse("cron(30 1 ? * SUN *)", "America/New_York")
    assert next_times(sundays, datetime(2026, 10, 31, tzinfo=timezone.utc), 2) == [
        datetime(
            2026, 11, 1, 5, 30, tzinfo=timezone.utc
        ),  # daylight saving time; an hour later it is 1:30 again
        datetime(2026, 11, 8, 6, 30, tzinfo=timezone.utc),
    ]


def test_the_last_time_of_a_cron_is_found_backwards() -> None:
    sundays = parse("cron(0 3 ? * SUN *)")
    assert isinstance(sundays, Cron)
    assert last_time(sundays, NOON, since=at(1, 3)) == at(15, 3)
    assert last_time(sundays, at(15, 3), since=at(1, 3)) == at(15, 3)
    assert last_time(sundays, at(14, 3), since=at(8, 3)) is None
