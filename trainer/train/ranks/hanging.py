"""Detect ranks that hang: when to ask for their stacks, and when to kill them. Also writes a rank's stacks.

When no rank has sent an event for half of the bound, the supervisor asks all of them where they are. A rank
that waits for others answers from a separate thread and writes stacks and unfinished collectives to the log.
A rank that has not answered after the other half (it is stopped, or holds the interpreter) is killed, and all
restart. If all answer and still wait for each other, the timeout of their collective ends them.
"""

from __future__ import annotations

import faulthandler
import sys
from collections.abc import Collection
from dataclasses import dataclass, field

BOUND_SECONDS = 600.0  # the longest legitimate silence: rank 0 computes the scores and writes the model


@dataclass(frozen=True, kw_only=True)
class Silence:
    """Action on silent ranks: ask all of them for their stacks, or kill those in `hung`."""

    ask: bool = False
    hung: tuple[int, ...] = ()


@dataclass(kw_only=True)
class HangWatch:
    """Keeps track of events and answers of ranks. Times are in seconds of one clock."""

    heard_at: float  # of any rank
    bound_seconds: float = BOUND_SECONDS
    _asked_at: float | None = None
    _answered: set[int] = field(default_factory=set)

    def hear(self, now: float) -> None:
        """Note an event of any rank: the ranks make progress."""
        self.heard_at, self._asked_at = now, None

    def answer(self, rank: int) -> None:
        """Note that a rank has answered."""
        self._answered.add(rank)

    def look(self, ranks: Collection[int], now: float) -> Silence:
        """Return what to do about these ranks now. With `ask`, the ranks count as asked."""
        half = self.bound_seconds / 2
        if not ranks or now - self.heard_at < half:
            return Silence()
        if self._asked_at is None:
            self._asked_at = now
            self._answered.clear()
            return Silence(ask=True)
        if now - self._asked_at < half:
            return Silence()
        hung = tuple(rank for rank in ranks if rank not in self._answered)
        self.hear(now)  # those that answered may be busy: ask again after another silence
        return Silence(hung=hung)


def dump(rank: int) -> None:
    """Write the stacks of all threads of this rank and its unfinished collectives to standard error, which is
    logged.

    The flight recorder is written as JSON: its own files are pickles.
    """
    from torch._C import _distributed_c10d  # late: the supervisor needs no torch

    print(f"rank {rank} was asked for its stacks; all threads:", file=sys.stderr, flush=True)
    faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
    recorded: bytes = _distributed_c10d._dump_fr_trace_json(includeCollectives=True, onlyActive=True)  # type: ignore[attr-defined]
    collectives = recorded.decode(errors="replace")
    print(f"rank {rank}, unfinished collectives: {collectives}", file=sys.stderr, flush=True)
