"""Child processes: they leave Ctrl-C to their parent, and end when it ends, for any reason."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.context import BaseContext
from typing import Any, TypeVar

from trainer.base.process_state import die_with_the_parent

T = TypeVar("T")
R = TypeVar("R")


@contextmanager
def ctrl_c_blocked() -> Iterator[None]:
    """Start processes in here: they inherit a blocked SIGINT. Ours waits for the end, unless another thread
    takes it.

    Ctrl-C reaches the whole terminal group. Our processes ignore it once they run; but until then, for the
    seconds in which they import torch, it would end them with a traceback.
    """
    resource_tracker.ensure_running()  # whose start would unblock it
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_with_the_parent() -> None:
    """Leave Ctrl-C to the parent, let SIGTERM end this process, and end it at once when the parent ends, by
    kill -9, too.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def wait() -> None:
        parent.join()  # returns when the parent's end of a pipe closes
        os._exit(1)

    threading.Thread(target=wait, name="parent-watch", daemon=True).start()


def in_processes(work: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
    """Yield the work's result for each item, in their order, from a process a core; in this one, if there is
    only one of either. Results are pickled, items and work are not: processes are forks, so this one may have
    no threads.

    Raises BrokenProcessPool if one dies.
    """
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1
    if min(cores, len(items)) < 2:
        yield from map(work, items)
        return
    context = multiprocessing.get_context("fork")
    pool = ProcessPoolExecutor(
        min(cores, len(items)), mp_context=context, initializer=_begin, initargs=(work, items)
    )
    others = multiprocessing.active_children()
    try:
        yield from pool.map(_do, range(len(items)))
    finally:  # they are idle, or nobody wants their results
        for process in multiprocessing.active_children():
            if process not in others:
                process.terminate()
        pool.shutdown(cancel_futures=True)


_given: tuple[Callable[[Any], Any], Sequence[Any]]  # of a process of `in_processes`


def _begin(work: Callable[[Any], Any], items: Sequence[Any]) -> None:
    global _given
    _given = work, items
    end_with_the_parent()
    die_with_the_parent()


def _do(number: int) -> Any:
    work, items = _given
    return work(items[number])


def end_with_stdin() -> None:
    """Wait until the parent closes stdin or ends, then end this process at once; the kernel ends its children
    that asked for it.
    """
    while os.read(0, 1 << 10):
        pass
    os._exit(1)


def call_in_child(
    context: BaseContext, target: Callable[..., None], *arguments: object, limit_seconds: float | None = None
) -> tuple[Any, str]:
    """Call `target(pipe, *arguments)` in a child process; return what it sends and '', or None and why there
    is nothing.
    """
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=target, args=(theirs, *arguments), daemon=True)  # type: ignore[attr-defined]
    try:
        with ctrl_c_blocked():
            process.start()
        theirs.close()
        if ours.poll(limit_seconds):
            return ours.recv(), ""
        return None, f"it was not done after {limit_seconds:.0f} s"
    except EOFError:
        process.join()
        return None, f"its process ended with exit code {process.exitcode}"
    finally:
        if process.pid is not None:
            process.kill()
            process.join()
        ours.close()
