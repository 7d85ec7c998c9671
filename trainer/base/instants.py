"""Instants: the clock of desk and node, and their text in tags and JSON. Standard library only."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from trainer.base.environment import clock_ahead_seconds
from trainer.base.strict_json import instant


def utc_now() -> datetime:
    """Return the current instant in UTC, to the microsecond. The only clock of desk and node."""
    return datetime.now(timezone.utc) + timedelta(seconds=clock_ahead_seconds())


def iso(moment: datetime) -> str:
    """Write an instant as tags and JSON carry it: `2026-11-20T23:59:12.345678Z`, without a fraction if it has
    none.
    """
    return moment.astimezone(timezone.utc).isoformat().replace("+00:00", "Z")


def from_iso(text: str) -> datetime:
    """Parse an instant that `iso` wrote. Raises ValueError for one without a zone, or centuries away."""
    return instant(text)
