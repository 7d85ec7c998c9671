"""Ctrl-C reaches the whole terminal group: processes of ours that start up leave it to their parent, which
ends them.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker


@contextmanager
def ctrl_c_blocked() -> Iterator[None]:
    """Start processes in here: they inherit a blocked SIGINT. Ours waits for the end, unless another thread
    takes it.

    They ignore it themselves once they run; but until then, for the seconds in which they import torch, a
    Ctrl-C would end them with a traceback.
    """
    resource_tracker.ensure_running()  # whose start would unblock it
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
