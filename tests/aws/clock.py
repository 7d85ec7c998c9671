"""A clock that tests stop."""

from __future__ import annotations

from datetime import datetime

from trainer.rehearsal.account import Clock


class StoppedClock(Clock):
    """A clock that stops between `advance` calls, for tests of exact instants."""

    def __init__(self, now: datetime) -> None:
        super().__init__()
        self._stopped_at = now

    def now(self) -> datetime:
        """Return the current instant."""
        return self._stopped_at + self._skipped
