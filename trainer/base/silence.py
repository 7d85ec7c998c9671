"""Work without progress: the clock of its signs, and the bound that follows from its own rate. Pure.

A sign is work done (a step, a validation batch, a score, a symbol read, bytes, an event, output),
never a thread that is alive. The bound is SPREAD times the longest pause between two signs so far, at least
`least`. Until signs span `least` seconds there is no rate, and the bound is at least `first`, the boot
allowance. Who watches a worker acts at the bound, the node's own watch at HALF_MORE of it, the sweeper at
TWICE.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field

SPREAD = 20  # steps of one job differ by this factor at most: the first is compiled, one meets a checkpoint
LEAST_SECONDS = 300.0  # torch.compile, a checkpoint to a full disk's page cache, a model written
FIRST_SECONDS = 900.0  # the boot allowance where no type is known (trainer.runs.lease)
MOST_SECONDS = 7200.0  # whatever its rate: at this bound a hung machine costs two hours, four with its node
SAME_SECONDS = 1.0  # signs that follow each other faster are one
PAUSES_KEPT = 100
# A watcher that has not listened for so long was stopped with those that it watches (Ctrl-Z, a paused
# container), or busy: none of them was silent then.
DEAF_SECONDS = 30.0
HALF_MORE, TWICE = 1.5, 2.0  # of the bound: the node's own watch, the sweeper


def bound_seconds(
    pauses: Collection[float], *, spanned: float, first: float = FIRST_SECONDS, least: float = LEAST_SECONDS
) -> float:
    """Return how long work with these pauses between its signs may be without one. `spanned`: seconds from
    its begin to its last sign.
    """
    floor = least if spanned >= least and pauses else max(first, least)
    return min(max(floor, SPREAD * max(pauses, default=0.0)), MOST_SECONDS)


@dataclass(kw_only=True)
class ProgressClock:
    """The signs of one worker, rank or process. Times are in seconds of one clock."""

    began: float
    first: float = FIRST_SECONDS
    least: float = LEAST_SECONDS
    _signed_at: float = field(default=0.0, init=False)
    _stirred_at: float = field(default=0.0, init=False)
    _counted_at: float = field(default=0.0, init=False)
    _pauses: deque[float] = field(default_factory=lambda: deque(maxlen=PAUSES_KEPT), init=False)

    def __post_init__(self) -> None:
        self._signed_at = self._stirred_at = self._counted_at = self.began

    @property
    def at(self) -> float:
        """Return when it last moved; at first its begin."""
        return max(self._signed_at, self._stirred_at)

    @property
    def has_rate(self) -> bool:
        """Return whether its signs span long enough for a rate."""
        return self._signed_at - self.began >= self.least

    @property
    def bound(self) -> float:
        """Return how many seconds it may be without a sign."""
        spanned = self._signed_at - self.began
        return bound_seconds(self._pauses, spanned=spanned, first=self.first, least=self.least)

    def sign(self, now: float) -> None:
        """Note a sign of progress."""
        if now - self._counted_at >= SAME_SECONDS:
            self._pauses.append(now - self._signed_at)
            self._counted_at = now
        self._signed_at = now

    def stir(self, now: float) -> None:
        """Note what counts only before its first rate: its bound begins anew, and no pause ends."""
        if not self.has_rate:
            self._stirred_at = now

    def begin(self, now: float) -> None:
        """Begin to count anew after a time without work; what is known of its rate stays."""
        self._stirred_at, self._signed_at, self._counted_at = now, now, now

    def is_silent(self, now: float) -> bool:
        """Return whether it was without a sign for longer than its bound."""
        return now - self.at > self.bound
