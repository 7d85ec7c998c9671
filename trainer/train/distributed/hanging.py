"""Ranks that hang: who is asked for its stacks, and who is ended because it does not answer. And what a rank tells of itself.

When no rank has spoken for half of the bound, the supervisor asks all of them. One that waits for others answers by a thread of
its own: stacks and unfinished collectives go to the log. One that has not answered when the other half is over (it is stopped,
or holds the interpreter) is killed, and all start again. Ranks that all answer and still wait for each other are ended by the
time-out of their collective.
"""

from __future__ import annotations

import faulthandler
import sys
from collections.abc import Collection
from dataclasses import dataclass, field

BOUND_SECONDS = 600.0  # the longest silence is that of rank 0, which alone computes the scores and writes the model


@dataclass(frozen=True, kw_only=True)
class Silence:
    """The next action on silent ranks: ask them where they are, or kill those that hang."""

    ask: bool = False
    hung: tuple[int, ...] = ()


@dataclass(kw_only=True)
class HangWatch:
    """When which rank was heard. Times are those of any one clock, in seconds."""

    heard_at: float  # of any rank
    bound_seconds: float = BOUND_SECONDS
    _asked_at: float | None = None
    _answered: set[int] = field(default_factory=set)

    def hear(self, now: float) -> None:
        """Note an event of any rank: none of them waits for another one that hangs."""
        self.heard_at, self._asked_at = now, None

    def answer(self, rank: int) -> None:
        """Note that a rank has answered."""
        self._answered.add(rank)

    def look(self, ranks: Collection[int], now: float) -> Silence:
        """Return what is to be done about these ranks now. Those that it says to ask count as asked."""
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
        self.hear(now)  # those that answered may be busy: they are asked anew after another silence
        return Silence(hung=hung)


def dump(rank: int) -> None:
    """Write where every thread of this rank is, and the collectives that it has not finished, to standard error: the log.

    The flight recorder is written as JSON: its own files are pickles.
    """
    from torch._C import _distributed_c10d  # late: the supervisor, which watches, needs no torch of its own

    print(f"rank {rank} was asked where it is; every thread:", file=sys.stderr, flush=True)
    faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
    recorded: bytes = _distributed_c10d._dump_fr_trace_json(includeCollectives=True, onlyActive=True)  # type: ignore[attr-defined]
    print(f"rank {rank}, unfinished collectives: {recorded.decode(errors='replace')}", file=sys.stderr, flush=True)
