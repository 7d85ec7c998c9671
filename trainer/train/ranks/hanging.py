"""Ranks without progress: when to ask for their stacks, and when to end them. Also writes a rank's stacks.

When no rank has given a sign for half of the bound (trainer.base.silence), the supervisor asks all of them
where they are. A rank that waits for others answers from a separate thread and writes stacks and unfinished
collectives to the log. At the bound the ranks that did not answer are ended (each is stopped, or holds the
interpreter), or all of them if all answered: a thread that answers is no progress. Then all restart.
"""

from __future__ import annotations

import faulthandler
import sys
import threading
import traceback
from collections.abc import Collection
from dataclasses import dataclass, field

from trainer.base.silence import ProgressClock


@dataclass(frozen=True, kw_only=True)
class Silence:
    """Action on silent ranks: ask all of them for their stacks, or end those in `hung`."""

    ask: bool = False
    hung: tuple[int, ...] = ()
    answered: bool = False  # all of them answered, and none made progress


@dataclass(kw_only=True)
class HangWatch:
    """Keeps track of signs and answers of ranks. Times are in seconds of one clock."""

    clock: ProgressClock  # of all ranks together
    _asked_at: float | None = None
    _answered: set[int] = field(default_factory=set)

    def begin(self, now: float) -> None:
        """Give ranks that begin all the time again."""
        self.clock.begin(now)
        self._asked_at = None

    def note_sign(self, now: float) -> None:
        """Note a sign of any rank: the ranks make progress."""
        self.clock.sign(now)
        self._asked_at = None

    def note_answer(self, rank: int) -> None:
        """Note that a rank has answered."""
        self._answered.add(rank)

    def check(self, ranks: Collection[int], now: float) -> Silence:
        """Return what to do about these ranks now. With `ask`, the ranks count as asked."""
        half = self.clock.bound / 2
        if not ranks or now - self.clock.at < half:
            return Silence()
        if self._asked_at is None:
            self._asked_at = now
            self._answered.clear()
            return Silence(ask=True)
        if now - self._asked_at < half:
            return Silence()
        hung = tuple(rank for rank in ranks if rank not in self._answered)
        self.begin(now)
        return Silence(hung=hung or tuple(ranks), answered=not hung)


# Flight recorders of torch 2.13, each of one backend. A build without NCCL lacks the first.
RECORDERS = {"nccl": "_dump_nccl_trace_json", "gloo": "_dump_fr_trace_json"}


def dump(rank: int) -> None:
    """Write the stacks of this rank's threads, the main one first, and its unfinished collectives to standard
    error, which is logged.

    Flight recorders are written as JSON: their own files are pickles. One that can't be read is named: a rank
    that fails to answer would count as hung.
    """
    from torch._C import _distributed_c10d  # late: the supervisor needs no torch

    print(f"rank {rank} was asked for its stacks; its main thread, then others:", file=sys.stderr)
    main = sys._current_frames().get(threading.main_thread().ident or 0)  # faulthandler shows 100, the newest
    traceback.print_stack(main, file=sys.stderr)
    sys.stderr.flush()
    faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
    for backend, name in RECORDERS.items():
        if recorder := getattr(_distributed_c10d, name, None):
            try:
                recorded = recorder(includeCollectives=True, onlyActive=True).decode(errors="replace")
            except Exception as error:  # whatever a recorder raises, the rank answers
                recorded = f"not readable ({type(error).__name__}: {error})"
            print(f"rank {rank}, unfinished {backend} collectives: {recorded}", file=sys.stderr, flush=True)
