"""Recurrence of a retrain: some weekdays, or a day of the month, at a local time. Pure.

A local time that a clock change skips does not occur on that day; one that it repeats occurs once, the first
time. EventBridge Scheduler does the same:
https://docs.aws.amazon.com/scheduler/latest/UserGuide/schedule-types.html (looked up 2026-11-20).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from itertools import count, takewhile
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from trainer.base.errors import nearest

WEEKDAYS = ("MON", "TUE", "WED", "THU", "FRI", "SAT", "SUN")
LAST_DAY = 28  # which every month has
FORM = (
    f"A retrain has weekdays ({WEEKDAYS[0]} to {WEEKDAYS[-1]}) or day_of_month (1 to {LAST_DAY}), hour (0 to"
    " 23) and minute (0 to 59), such as `weekdays: [SUN], hour: 3, minute: 0`."
)


@dataclass(frozen=True, kw_only=True)
class Recurrence:
    """One time of day on some weekdays, or on a day of the month. Raises ValueError for other values."""

    weekdays: tuple[str, ...] = ()
    day_of_month: int | None = None  # instead of weekdays
    hour: int
    minute: int = 0
    time_zone: str = "UTC"

    def __post_init__(self) -> None:
        days = self.weekdays
        named = isinstance(days, tuple) and all(day in WEEKDAYS and days.count(day) == 1 for day in days)
        by_day = days == () and _is_within(self.day_of_month, 1, LAST_DAY)
        by_week = bool(named and days) and self.day_of_month is None
        if not ((by_day or by_week) and _is_within(self.hour, 0, 23) and _is_within(self.minute, 0, 59)):
            raise refused({key: getattr(self, key) for key in ("weekdays", "day_of_month", "hour", "minute")})
        read_time_zone(self.time_zone)

    @property
    def zone(self) -> ZoneInfo:
        """Return its time zone."""
        return read_time_zone(self.time_zone)

    def times(self, after: datetime) -> Iterator[datetime]:
        """Yield its instants later than `after`, in UTC. There is always another."""
        first = after.astimezone(self.zone).date()
        for day in (first + timedelta(days=offset) for offset in count()):
            instant = self._instant(day) if self._is_on(day) else None
            if instant is not None and instant > after:
                yield instant

    def last_time(self, before: datetime, *, since: datetime) -> datetime | None:
        """Return its last instant later than `since` and not later than `before`, or None."""
        return max(takewhile(lambda instant: instant <= before, self.times(since)), default=None)

    def skipped_days(self, after: datetime, *, days: int) -> list[date]:
        """Return the days, of the next ones, on which a clock change skips its local time."""
        first = after.astimezone(self.zone).date()
        coming = (first + timedelta(days=offset) for offset in range(days))
        return [day for day in coming if self._is_on(day) and self._instant(day) is None]

    def _is_on(self, day: date) -> bool:
        return WEEKDAYS[day.weekday()] in self.weekdays or day.day == self.day_of_month

    def _instant(self, day: date) -> datetime | None:
        """Return its instant on a day, in UTC; None if a clock change skips it."""
        local = datetime.combine(day, time(self.hour, self.minute))
        instant = local.replace(tzinfo=self.zone).astimezone(timezone.utc)
        return instant if instant.astimezone(self.zone).replace(tzinfo=None) == local else None


def read_time_zone(name: str) -> ZoneInfo:
    """Return a time zone by its IANA name. Raises ValueError for any other text."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:  # OSError: a folder, or too long a name
        like = nearest(name[:80], available_timezones()) or "A name is America/New_York, or UTC."
        raise ValueError(f"time_zone {name[:80]!r} is not a time zone. {like}") from error


def refused(values: Mapping[str, Any]) -> ValueError:
    """Return the error for times that no retrain has."""
    shown = ", ".join(f"{key}: {value}" for key, value in values.items() if value not in ((), None))
    return ValueError(f"`{shown[:200]}` is not accepted. {FORM}")


def _is_within(value: Any, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most
