"""Schedule expressions of EventBridge Scheduler that a stack uses: at(...), rate(...), and the cron(...) of a
retrain. Pure.

Syntax: https://docs.aws.amazon.com/scheduler/latest/UserGuide/schedule-types.html (looked up 2026-11-20).
Every other cron is refused rather than misread.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from typing import Any

from trainer.retrains.recurrence import Recurrence, read_time_zone

_RATE_UNITS = {"minute": timedelta(minutes=1), "hour": timedelta(hours=1), "day": timedelta(days=1)}
_AT = re.compile(r"at\((\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\)")
_RATE = re.compile(r"rate\(([1-9]\d*) (minute|hour|day)s?\)")
_CRON = re.compile(r"cron\((\d+) (\d+) (?:(\d+) \* \?|\? \* ([A-Z,]+)) \*\)")


# At an instant, once; every period, counted from the start; as a retrain.
Expression = datetime | timedelta | Recurrence


def parse(text: str, zone_name: str = "UTC") -> Expression:
    """Read a schedule expression. Raises ValueError saying what is wrong with it."""
    try:
        zone = read_time_zone(zone_name)
        if match := _AT.fullmatch(text):
            return datetime.fromisoformat(match[1]).replace(tzinfo=zone).astimezone(timezone.utc)
        if match := _RATE.fullmatch(text):
            return int(match[1]) * _RATE_UNITS[match[2]]
        if match := _CRON.fullmatch(text):
            minute, hour, day, weekdays = match.groups()
            days: dict[str, Any] = (
                {"weekdays": tuple(weekdays.split(","))} if weekdays else {"day_of_month": int(day)}
            )
            return Recurrence(hour=int(hour), minute=int(minute), time_zone=zone_name, **days)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"Invalid Schedule Expression {text}. {error}") from error
    raise ValueError(f"Invalid Schedule Expression {text}.")


def next_fire(expression: Expression, *, start: datetime, after: datetime) -> datetime | None:
    """Return the first firing later than `after` of a schedule that began at `start`; None for one of an
    instant, which fires once.
    """
    if isinstance(expression, datetime):
        return None
    if isinstance(expression, timedelta):
        return start + ((after - start) // expression + 1) * expression
    return next(expression.times(after))
