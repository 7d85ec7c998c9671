"""Progress of files on their way: a bar with bytes, rate and time left on a terminal, else a line now and
then.

Any thread may add to it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from trainer.cli.output import duration
from trainer.cli.terminal import Console

if TYPE_CHECKING:
    from rich.console import RenderableType

DRAWN_SECONDS = 0.1  # between two drawings
BAR = 30  # characters


class TransferProgress:
    """Bytes that have moved, of all; `verb` says what happens to them, such as `pushing`."""

    def __init__(
        self, console: Console, verb: str, total: int, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console, self._verb, self._total, self._clock = console, verb, total, clock
        self._moved, self._began, self._drawn = 0, clock(), float("-inf")
        self._lock = threading.Lock()

    def __call__(self, count: int) -> None:
        """Add bytes; fewer than none if a file begins anew."""
        with self._lock:
            self._moved += count
            now = self._clock()
            if now - self._drawn < DRAWN_SECONDS:
                return
            self._drawn = now
            if self._console.live:
                self._console.draw(self.picture)
            else:
                self._console.update(self.line())

    def line(self) -> str:
        """Return the state as text: `pushing 12.3 of 45.6 MB, 27%, 8.1 MB/s, 4s left`."""
        moved, seconds = max(0, self._moved), self._clock() - self._began
        parts = [f"{self._verb} {moved / 1e6:,.1f} of {self._total / 1e6:,.1f} MB"]
        if self._total:
            parts.append(f"{min(1.0, moved / self._total):.0%}")
        if seconds >= 1 and moved:
            rate = moved / seconds
            parts += [f"{rate / 1e6:,.1f} MB/s", f"{duration((self._total - moved) / rate)} left"]
        return ", ".join(parts)

    def picture(self) -> RenderableType:
        """Return the state with a bar."""
        from rich.table import Column, Table

        from trainer.cli.views.progress import share_bar
        from trainer.cli.views.table import DIM, styled

        grid = Table.grid(Column(), Column(no_wrap=True), padding=(0, 2, 0, 0))
        share = min(1.0, max(0, self._moved) / self._total) if self._total else 0.0
        grid.add_row(share_bar(share, BAR), styled(self.line(), DIM))
        return grid
