"""The interface of a source of bars, its pages and its errors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np


class SourceBusy(Exception):
    """The source can't answer now: throttled, failing, no connection. Ask again after `seconds`, if given."""

    def __init__(self, why: str, seconds: float | None = None) -> None:
        super().__init__(why)
        self.seconds = seconds


class BadAnswer(Exception):
    """The source's answer is not what its documentation says. Ask again, a few times."""


class NoSuchSymbol(Exception):
    """The source does not have this symbol or any bar of it; the others go on."""


class SourceRefused(Exception):
    """The source answers nobody here: by region, or by a ban. Everything ends."""


def no_values() -> np.ndarray:
    """Return the values of no bars, (5, 0)."""
    return np.zeros((5, 0))


@dataclass(frozen=True, kw_only=True)
class BarPage:
    """Bars of [since, covers_until), all that the source has there, oldest first: `timestamp` (N,) int64 ns
    UTC, `values` (5, N) float64 open, high, low, close, volume.

    `actions` (2, N): splits (new shares for one old; 1 for none) and dividends of a share, as traded; None
    for a source without. `dropped` counts impossible bars that were left out.
    """

    covers_until: int
    timestamp: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    values: np.ndarray = field(default_factory=no_values)
    actions: np.ndarray | None = None
    dropped: int = 0

    def __len__(self) -> int:
        return len(self.timestamp)


class BarSource(Protocol):
    """A source of bars. Methods raise SourceBusy, BadAnswer, NoSuchSymbol and SourceRefused."""

    library: str  # and version
    always_open: bool  # a missing bar is a hole, and is asked for once more
    actions: bool  # its pages have splits and dividends
    at_once: int  # symbols to ask for at a time
    synthetic: bool

    def timeframes(self) -> tuple[str, ...]:
        """Return the timeframes that it has bars of."""
        ...

    def spelled(self, symbol: str) -> str:
        """Return the source's own spelling of a symbol: BTC/USD for BTC-USD."""
        ...

    def now(self) -> int:
        """Return the source's time in ns UTC; of one without a clock, this machine's."""
        ...

    def complete_until(self, timeframe: str, now: int) -> int:
        """Return the end of the last bar that can't change any more."""
        ...

    def earliest(self, timeframe: str, now: int) -> tuple[int, str]:
        """Return the time before which it gives no bars of this timeframe, and the limit as a sentence, ''
        where it gives all that it has.
        """
        ...

    def page(self, symbol: str, timeframe: str, since: int, until: int) -> BarPage:
        """Return the first bars of [since, until): all of them, or as many as it gives at once."""
        ...
