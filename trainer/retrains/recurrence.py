"""Recurrence of a retrain: some weekdays, or a day of the month, at a local time. Pure.

A local time that a clock change skips does not occur on that day; one that it repeats occurs once, the first
time. EventBridge Scheduler does the same:
https://docs.aws.amazon.com/scheduler/latest/UserGuide/schedule-types.html (looked up 2026-11-20).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from itertools import count, takewhile
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from trainer.base.errors import nearest

WEEKDAYS = ("MON", "TUE", "WED", "THU", "FRI", "SAT", "SUN")
LAST_DAY = 28  # which every month has
# A cron expression of EventBridge, for the form nearest to it.
_CRON = re.compile(r"cron\((?P<minute>\S+) (?P<hour>\S+) (?P<day_of_month>\S+) \S+ (?P<weekdays>\S+) \S+\)")


@dataclass(frozen=True, kw_only=True)
class Recurrence:
    """One time of day on some weekdays, or on a day of the month. Raises ValueError with the nearest accepted
    form for other values.
    """

    weekdays: tuple[str, ...] = ()
    day_of_month: int | None = None  # instead of weekdays
    hour: int
    minute: int = 0
    time_zone: str = "UTC"

    def __post_init__(self) -> None:
        given = {key: getattr(self, key) for key in ("weekdays", "day_of_month", "hour", "minute")}
        if repr(given) != repr(_nearest_form(given)):  # repr: neither True nor 1.0 is 1
            raise _not_accepted(_shown(given), given)
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


def cron_refusal(text: str) -> ValueError:
    """Return the error for a cron expression of EventBridge, which a retrain does not take."""
    match = _CRON.fullmatch(text)
    given = match.groupdict() if match else {"weekdays": "SUN", "hour": 3, "minute": 0}
    return _not_accepted(f"cron: {text}", given)


def _not_accepted(shown: str, given: Mapping[str, Any]) -> ValueError:
    return ValueError(
        f"`{shown}` is not accepted. A retrain has weekdays ({WEEKDAYS[0]} to {WEEKDAYS[-1]}) or day_of_month"
        f" (1 to {LAST_DAY}), hour (0 to 23) and minute (0 to 59)."
        f" The nearest form is `{_shown(_nearest_form(given))}`."
    )


def _nearest_form(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the accepted form nearest to given values of any type, or to the fields of a cron expression."""
    weekdays = _nearest_weekdays(str(given["weekdays"]).upper())
    day = str(given.get("day_of_month")).replace("L", str(LAST_DAY))
    by_day = not weekdays and re.search(r"\d", day)
    return {
        "weekdays": () if by_day else weekdays or WEEKDAYS,
        "day_of_month": _nearest_number(day, 1, LAST_DAY) if by_day else None,
        "hour": _nearest_number(given["hour"], 0, 23),
        "minute": _nearest_number(given["minute"], 0, 59),
    }


def _nearest_weekdays(text: str) -> tuple[str, ...]:
    """Return the weekdays that a text names, or numbers as EventBridge does: 1 is Sunday."""
    text = re.sub(r"(?<!#)[1-7]", lambda number: WEEKDAYS[int(number[0]) - 2], text)
    names = re.findall("|".join(WEEKDAYS), text)
    if "-" in text and len(names) == 2:  # a span, such as MON-FRI
        first, last = map(WEEKDAYS.index, names)
        names = [WEEKDAYS[(first + offset) % 7] for offset in range((last - first) % 7 + 1)]
    return tuple(dict.fromkeys(names))


def _nearest_number(value: Any, low: int, high: int) -> int:
    match = re.search(r"(?<!/)-?\d+", str(value))
    return min(max(int(match[0]) if match else low, low), high)


def _shown(form: Mapping[str, Any]) -> str:
    """Return a form as YAML has it, without the keys that are left out."""
    return ", ".join(
        f"{key}: [{', '.join(map(str, value))}]" if isinstance(value, tuple) else f"{key}: {value!r}"
        for key, value in form.items()
        if value not in ((), None)
    )
