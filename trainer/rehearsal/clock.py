"""The clock of an embedded AWS: real time, plus what a test or a rehearsal has skipped."""

from __future__ import annotations

from datetime import datetime, timedelta

from trainer.runs.record import utc_now


class Clock:
    """Clock of one account. It runs at rate 1 and can be moved forward."""

    def __init__(self) -> None:
        self._skipped = timedelta()

    def now(self) -> datetime:
        """Return the present instant of this account, in UTC."""
        return utc_now() + self._skipped

    def advance(self, seconds: float) -> None:
        """Move the clock forward. Raises ValueError for a step back."""
        if seconds < 0:
            raise ValueError(f"the clock cannot go back {-seconds} s")
        self._skipped += timedelta(seconds=seconds)
