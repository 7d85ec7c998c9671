"""Schedule expressions of EventBridge Scheduler: at(...), rate(...) and cron(...), and when they fire next. Pure.

Not known here: the cron letters L, W and #, which are refused rather than misread.
Syntax: https://docs.aws.amazon.com/scheduler/latest/UserGuide/schedule-types.html (looked up 2026-11-20).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
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
class Cron:
    """Fire at every minute that all six fields allow, in a time zone."""

    zone: ZoneInfo
    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]  # 1 is Sunday
    years: frozenset[int]


Expression = At | RateExpression | Cron


def parse(text: str, zone_name: str = "UTC") -> Expression:
    """Read a schedule expression. Raises ValueError saying what is wrong with it."""
    try:
        zone = ZoneInfo(zone_name or "UTC")
    except (ZoneInfoNotFoundError, ValueError) as error:
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
    """Return the first firing later than `after` of a schedule that began at `start` and has fired, or None."""
    if isinstance(expression, At):
        return None
    if isinstance(expression, RateExpression):
        return start + ((after - start) // expression.period + 1) * expression.period
    return _next_cron(expression, after)


def _parse_at(inside: str, zone: ZoneInfo, text: str) -> At:
    if not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", inside):
        raise ValueError(f"Invalid Schedule Expression {text}.")
    try:
        return At(at=datetime.fromisoformat(inside).replace(tzinfo=zone).astimezone(timezone.utc))
    except ValueError as error:
        raise ValueError(f"Invalid Schedule Expression {text}.") from error


def _parse_rate(inside: str, text: str) -> RateExpression:
    match = re.fullmatch(r"([1-9]\d*) (minute|hour|day)s?", inside.strip())
    if not match:
        raise ValueError(f"Invalid Schedule Expression {text}.")
    return RateExpression(period=int(match[1]) * _RATE_UNITS[match[2]])


def _parse_cron(inside: str, zone: ZoneInfo, text: str) -> Cron:
    parts = inside.split()
    if len(parts) != len(_CRON_FIELDS) or (parts[2] == "?") == (parts[4] == "?"):
        raise ValueError(f"Invalid Schedule Expression {text}.")
    try:
        sets = [_cron_field(part.upper(), *spec) for part, spec in zip(parts, _CRON_FIELDS, strict=True)]
    except ValueError as error:
        raise ValueError(f"Invalid Schedule Expression {text}. {error}") from error
    return Cron(zone=zone, minutes=sets[0], hours=sets[1], days=sets[2], months=sets[3], weekdays=sets[4], years=sets[5])


def _cron_field(part: str, name: str, low: int, high: int, names: list[str]) -> frozenset[int]:
    allowed: set[int] = set()
    for item in part.split(","):
        span, slash, step_text = item.partition("/")
        step = int(step_text) if slash else 1
        if span in ("*", "?"):
            first, last = low, high
        else:
            ends = [names.index(end) + low if end in names else int(end) for end in span.split("-", 1)]
            first, last = ends[0], ends[-1] if len(ends) > 1 or not slash else high
        if step < 1 or not low <= first <= last <= high:
            raise ValueError(f"The field {name} cannot be '{part}'.")
        allowed.update(range(first, last + 1, step))
    return frozenset(allowed)


def _next_cron(cron: Cron, after: datetime) -> datetime | None:
    local = after.astimezone(cron.zone)
    for offset in range(_CRON_HORIZON_DAYS):
        day = local.date() + timedelta(days=offset)
        weekday = day.isoweekday() % 7 + 1
        if day.year not in cron.years or day.month not in cron.months or day.day not in cron.days:
            continue
        if weekday not in cron.weekdays:
            continue
        for hour in sorted(cron.hours):
            for minute in sorted(cron.minutes):
                instant = datetime(day.year, day.month, day.day, hour, minute, tzinfo=cron.zone).astimezone(timezone.utc)
                if instant > after:
                    return instant
    return None
