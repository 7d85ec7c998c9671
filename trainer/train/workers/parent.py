"""End a child process when the process that started it ends, for any reason."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import threading

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def end_with_the_parent() -> None:
    """Start a thread that ends this process at once when its parent ends, kill -9 included."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def wait() -> None:
        parent.join()  # returns when the parent's end of a pipe closes
        os._exit(1)

    threading.Thread(target=wait, name="parent-watch", daemon=True).start()


def die_with_the_parent() -> None:
    """Have the kernel kill this process, even a stopped one, when its parent ends for any reason.
    Linux only.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
