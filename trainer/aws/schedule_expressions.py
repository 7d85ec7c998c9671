"""Schedule expressions of EventBridge Scheduler: at(...), rate(...) and cron(...), and when they fire next.
Pure.

A cron's local time that a clock change skips does not fire on that day; one that it repeats fires once, the
first time. Syntax: https://docs.aws.amazon.com/scheduler/latest/UserGuide/schedule-types.html (looked up
2026-11-20). Of the letters, `L`, `3W`, `6L` and `FRI#2` are known, each alone in its field; other
combinations are refused rather than misread.
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

_RATE_UNITS = {"minute": timedelta(minutes=1), "hour": timedelta(hours=1), "day": timedelta(days=1)}
_MONTHS = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"]
_WEEKDAYS = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"]
_CRON_FIELDS: tuple[tuple[str, int, int, list[str]], ...] = (
    ("minutes", 0, 59, []),
    ("hours", 0, 23, []),
    ("day of month", 1, 31, []),
    ("month", 1, 12, _MONTHS),
    ("day of week", 1, 7, _WEEKDAYS),
    ("year", 1970, 2199, []),
)
_CRON_HORIZON_DAYS = 366 * 5  # a cron that names no day within five years never fires here


@dataclass(frozen=True, kw_only=True)
class At:
    """Fire once."""

    at: datetime


@dataclass(frozen=True, kw_only=True)
class RateExpression:
    """Fire every period, counted from the start."""

    period: timedelta


@dataclass(frozen=True, kw_only=True)
class NearestWeekday:
    """`3W`: the Monday to Friday nearest to a day of the month, in the same month."""

    day: int

    def holds(self, day: date) -> bool:
        """Return whether it is this day."""
        last = calendar.monthrange(day.year, day.month)[1]
        if self.day > last:
            return False
        wanted = day.replace(day=self.day)
        shift = {5: -1 if self.day > 1 else 2, 6: 1 if self.day < last else -2}.get(wanted.weekday(), 0)
        return day == wanted + timedelta(days=shift)


@dataclass(frozen=True, kw_only=True)
class LastDay:
    """`L` as the day of the month, and with a weekday (`6L`) the last one of the month."""

    weekday: int = 0  # 1 is Sunday; 0: any

    def holds(self, day: date) -> bool:
        """Return whether it is this day."""
        last = calendar.monthrange(day.year, day.month)[1]
        return _weekday(day) == self.weekday and day.day > last - 7 if self.weekday else day.day == last


@dataclass(frozen=True, kw_only=True)
class NthWeekday:
    """`FRI#2`: the second Friday of the month."""

    weekday: int  # 1 is Sunday
    number: int

    def holds(self, day: date) -> bool:
        """Return whether it is this day."""
        return _weekday(day) == self.weekday and (day.day - 1) // 7 + 1 == self.number


@dataclass(frozen=True, kw_only=True)
class Cron:
    """Fire at every minute that all six fields allow, in a time zone."""

    zone: ZoneInfo
    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]  # 1 is Sunday
    years: frozenset[int]
    rule: NearestWeekday | LastDay | NthWeekday | None = (
        None  # of a field with a letter, which then allows every day
    )

    def on(self, day: date) -> bool:
        """Return whether the fields allow a day."""
        return (
            (day.year in self.years and day.month in self.months and day.day in self.days)
            and _weekday(day) in self.weekdays
            and (self.rule is None or self.rule.holds(day))
        )


Expression = At | RateExpression | Cron


def parse(text: str, zone_name: str = "UTC") -> Expression:
    """Read a schedule expression. Raises ValueError saying what is wrong with it."""
    try:
        zone = ZoneInfo(zone_name or "UTC")
    except (
        ZoneInfoNotFoundError,
        ValueError,
        OSError,
    ) as error:  # OSError: a folder of the database, or too long a name
        raise ValueError(f"Invalid Schedule Expression Timezone {zone_name}.") from error
    match = re.fullmatch(r"(at|rate|cron)\((.*)\)", text.strip())
    if not match:
        raise ValueError(f"Invalid Schedule Expression {text}.")
    kind, inside = match.groups()
    if kind == "at":
        return _parse_at(inside, zone, text)
    return _parse_rate(inside, text) if kind == "rate" else _parse_cron(inside, zone, text)


def first_fire(expression: Expression, start: datetime) -> datetime | None:
    """Return when a schedule that begins at `start` fires first, or None if never.

    An `at` in the past fires at once: AWS's own behaviour is not documented, and a deadline must not be lost.
    """
    return expression.at if isinstance(expression, At) else next_fire(expression, start=start, after=start)


def next_fire(expression: Expression, *, start: datetime, after: datetime) -> datetime | None:
    """Return the first firing later than `after` of a schedule that began at `start` and has fired,
    or None.
    """
    if isinstance(expression, At):
        return None
    if isinstance(expression, RateExpression):
        return start + ((after - start) // expression.period + 1) * expression.period
    return _next_cron(expression, after)


def next_times(expression: Expression, after: datetime, count: int) -> list[datetime]:
    """Return the next instants at which a schedule fires, at most `count`, in UTC; a rate is counted from
    `after`.
    """
    times: list[datetime] = []
    following = first_fire(expression, after)
    while following is not None and len(times) < count:
        times.append(following)
        following = next_fire(expression, start=after, after=following)
    return times


def last_time(cron: Cron, before: datetime, *, since: datetime) -> datetime | None:
    """Return the last instant later than `since` and not later than `before` at which a cron fired,
    or None.
    """
    day = before.astimezone(cron.zone).date()
    while day >= since.astimezone(cron.zone).date():
        times = [
            instant
            for _, instant in _times_on(cron, day)
            if instant is not None and since < instant <= before
        ]
        if times:
            return times[-1]
        day -= timedelta(days=1)
    return None


def skipped_times(cron: Cron, after: datetime, *, days: int) -> list[datetime]:
    """Return the local times (without a zone) in the next days that a clock change skips, so that the cron
    does not fire.
    """
    first = after.astimezone(cron.zone).date()
    coming = (first + timedelta(days=offset) for offset in range(days))
    return [local for day in coming for local, instant in _times_on(cron, day) if instant is None]


def _parse_at(inside: str, zone: ZoneInfo, text: str) -> At:
    if not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", inside):
        raise ValueError(f"Invalid Schedule Expression {text}.")
    try:
        return At(at=datetime.fromisoformat(inside).replace(tzinfo=zone).astimezone(timezone.utc))
    except (ValueError, OverflowError) as error:
        raise ValueError(f"Invalid Schedule Expression {text}.") from error


def _parse_rate(inside: str, text: str) -> RateExpression:
    match = re.fullmatch(r"([1-9]\d*) (minute|hour|day)s?", inside.strip())
    if not match:
        raise ValueError(f"Invalid Schedule Expression {text}.")
    try:
        return RateExpression(period=int(match[1]) * _RATE_UNITS[match[2]])
    except (ValueError, OverflowError) as error:
        raise ValueError(f"Invalid Schedule Expression {text}.") from error


def _parse_cron(inside: str, zone: ZoneInfo, text: str) -> Cron:
    parts = inside.split()
    if len(parts) != len(_CRON_FIELDS) or (parts[2] == "?") == (parts[4] == "?"):
        raise ValueError(f"Invalid Schedule Expression {text}.")
    parts = [part.upper() for part in parts]
    try:
        rule = _rule_of(parts)
        sets = [_cron_field(part, *spec) for part, spec in zip(parts, _CRON_FIELDS, strict=True)]
    except ValueError as error:
        raise ValueError(f"Invalid Schedule Expression {text}. {error}") from error
    names = ("minutes", "hours", "days", "months", "weekdays", "years")
    return Cron(zone=zone, rule=rule, **dict(zip(names, sets, strict=True)))


def _rule_of(parts: list[str]) -> NearestWeekday | LastDay | NthWeekday | None:
    """Take a field with a letter out of the parts, which then allows every day, and return its rule."""
    day, weekday = parts[2], parts[4]
    if day == "L":
        parts[2] = "*"
        return LastDay()
    if match := re.fullmatch(r"(\d{1,2})W", day):
        parts[2] = "*"
        return NearestWeekday(day=_within(int(match[1]), 1, 31, "day of month", day))
    if weekday == "L":
        parts[4] = "SAT"
    elif match := re.fullmatch(r"([A-Z]{3}|\d)L", weekday):
        parts[4] = "*"
        return LastDay(weekday=_weekday_number(match[1], weekday))
    elif match := re.fullmatch(r"([A-Z]{3}|\d)#(\d)", weekday):
        parts[4] = "*"
        number = _within(int(match[2]), 1, 5, "day of week", weekday)
        return NthWeekday(weekday=_weekday_number(match[1], weekday), number=number)
    return None


def _weekday_number(name: str, part: str) -> int:
    number = _WEEKDAYS.index(name) + 1 if name in _WEEKDAYS else int(name) if name.isdecimal() else 0
    return _within(number, 1, 7, "day of week", part)


def _within(number: int, low: int, high: int, name: str, part: str) -> int:
    if not low <= number <= high:
        raise ValueError(f"The field {name} cannot be '{part}'.")
    return number


def _weekday(day: date) -> int:
    """Return the weekday as crons count: 1 is Sunday."""
    return day.isoweekday() % 7 + 1


def _cron_field(part: str, name: str, low: int, high: int, names: list[str]) -> frozenset[int]:
    allowed: set[int] = set()
    try:
        for item in part.split(","):
            allowed.update(_cron_item(item, low, high, names, may_be_any="day" in name))
    except ValueError as error:
        raise ValueError(f"The field {name} cannot be '{part}'.") from error
    return frozenset(allowed)


def _cron_item(item: str, low: int, high: int, names: list[str], *, may_be_any: bool) -> range:
    """Return the numbers of one item of a field: a number or a name, a span, or either with a step. Raises
    ValueError.
    """
    span, slash, step_text = item.partition("/")
    step = int(step_text) if slash else 1
    if span == "*" or (span == "?" and may_be_any):
        first, last = low, high
    else:
        ends = [names.index(end) + low if end in names else int(end) for end in span.split("-", 1)]
        first, last = ends[0], ends[-1] if len(ends) > 1 or not slash else high
    if step < 1 or not low <= first <= last <= high:
        raise ValueError(item)
    return range(first, last + 1, step)


def _next_cron(cron: Cron, after: datetime) -> datetime | None:
    first = after.astimezone(cron.zone).date()
    for offset in range(_CRON_HORIZON_DAYS):
        for _, instant in _times_on(cron, first + timedelta(days=offset)):
            if instant is not None and instant > after:
                return instant
    return None


def _times_on(cron: Cron, day: date) -> Iterator[tuple[datetime, datetime | None]]:
    """Yield the local times of a day with their instants in UTC; None for one that a clock change skips."""
    if not cron.on(day):
        return
    for hour in sorted(cron.hours):
        for minute in sorted(cron.minutes):
            local = datetime(day.year, day.month, day.day, hour, minute)
            instant = local.replace(tzinfo=cron.zone).astimezone(timezone.utc)
            exists = instant.astimezone(cron.zone).replace(tzinfo=None) == local
            yield local, instant if exists else None
