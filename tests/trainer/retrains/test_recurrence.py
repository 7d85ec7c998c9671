"""Times of a recurrence, against instants worked out by hand."""

from __future__ import annotations

from datetime import date, datetime, timezone
from itertools import islice

import pytest

from trainer.retrains.recurrence import WEEKDAYS, Recurrence, read_time_zone

NOON = datetime(2026, 11, 20, 12, 0, tzinfo=timezone.utc)  # a Friday
SUNDAYS = Recurrence(weekdays=("SUN",), hour=3)


def at(day: int, hour: int, minute: int = 0, month: int = 11) -> datetime:
    return datetime(2026, month, day, hour, minute, tzinfo=timezone.utc)


def following(recurrence: Recurrence, after: datetime, number: int) -> list[datetime]:
    return list(islice(recurrence.times(after), number))


@pytest.mark.parametrize(
    ("recurrence", "expected"),
    [
        (SUNDAYS, [at(22, 3), at(29, 3)]),
        (Recurrence(weekdays=WEEKDAYS, hour=10, minute=15), [at(21, 10, 15), at(22, 10, 15)]),
        (Recurrence(weekdays=("THU", "FRI"), hour=12), [at(26, 12), at(27, 12)]),  # not NOON itself
        (Recurrence(day_of_month=20, hour=12, minute=1), [at(20, 12, 1), at(20, 12, 1, month=12)]),
        (Recurrence(day_of_month=1, hour=0), [at(1, 0, month=12), datetime(2027, 1, 1, tzinfo=timezone.utc)]),
        (Recurrence(weekdays=("SAT",), hour=1, time_zone="Asia/Tokyo"), [at(20, 16), at(27, 16)]),
    ],
)
def test_next_times_are_those_of_its_days(recurrence: Recurrence, expected: list[datetime]) -> None:
    assert following(recurrence, NOON, 2) == expected


def test_a_local_time_that_a_clock_change_skips_is_named() -> None:
    sundays = Recurrence(weekdays=("SUN",), hour=2, minute=30, time_zone="America/New_York")
    assert following(sundays, datetime(2027, 3, 1, tzinfo=timezone.utc), 2) == [
        datetime(2027, 3, 7, 7, 30, tzinfo=timezone.utc),
        datetime(2027, 3, 21, 6, 30, tzinfo=timezone.utc),  # on the 14th clocks went from 2:00 to 3:00
    ]
    assert sundays.skipped_days(NOON, days=366) == [date(2027, 3, 14)]
    assert sundays.skipped_days(NOON, days=30) == []


def test_a_local_time_that_a_clock_change_repeats_fires_once() -> None:
    sundays = Recurrence(weekdays=("SUN",), hour=1, minute=30, time_zone="America/New_York")
    assert following(sundays, datetime(2026, 10, 31, tzinfo=timezone.utc), 2) == [
        datetime(2026, 11, 1, 5, 30, tzinfo=timezone.utc),  # summer time; an hour later it is 1:30 again
        datetime(2026, 11, 8, 6, 30, tzinfo=timezone.utc),
    ]


def test_the_last_time_is_after_since_and_not_after_before() -> None:
    assert SUNDAYS.last_time(NOON, since=at(1, 3)) == at(15, 3)
    assert SUNDAYS.last_time(at(15, 3), since=at(1, 3)) == at(15, 3)
    assert SUNDAYS.last_time(at(14, 3), since=at(8, 3)) is None


@pytest.mark.parametrize("zone", ["Mars/Olympus", "America", "../UTC", "x" * 300, "", "a\0b"])
def test_an_unknown_time_zone_is_refused(zone: str) -> None:
    with pytest.raises(ValueError, match="is not a time zone"):
        read_time_zone(zone)
    with pytest.raises(ValueError, match="Did you mean Europe/Berlin"):
        Recurrence(weekdays=("SUN",), hour=3, time_zone="Europe/Berln")
