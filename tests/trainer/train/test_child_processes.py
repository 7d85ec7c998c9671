"""Child processes leave Ctrl-C to their parent."""

from __future__ import annotations

import signal
import subprocess
import sys
from multiprocessing import forkserver, resource_tracker
from typing import Any

import pytest

from trainer.train.child_processes import call_in_child, ctrl_c_blocked
from trainer.train.workers.processes import worker_context


def blocked() -> bool:
    return signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())


class Starting:
    """A context of multiprocessing whose one process answers, as it starts, whether Ctrl-C is blocked."""

    def Pipe(self, **_: Any) -> tuple[Any, Any]:  # noqa: N802
        return self, self

    def Process(self, **_: Any) -> Any:  # noqa: N802
        return self

    def start(self) -> None:
        self.answer = blocked()

    def poll(self, _: Any) -> bool:
        return True

    def recv(self) -> bool:
        return self.answer

    def close(self) -> None:
        pass

    kill = join = close
    pid = 1


@pytest.fixture(autouse=True)
def ctrl_c_as_at_a_terminal() -> None:
    """Raise KeyboardInterrupt: a process that a script started in the background ignores Ctrl-C."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # tests/conftest.py puts back what was there


def test_a_blocked_ctrl_c_is_delivered_afterwards() -> None:
    with pytest.raises(KeyboardInterrupt), ctrl_c_blocked():
        signal.raise_signal(signal.SIGINT)
        waited = blocked()
    assert waited and not blocked()


def test_workers_and_the_trial_start_with_ctrl_c_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []

    def ensure_running() -> None:
        resource_tracker.ensure_running()  # as it does first
        seen.append(blocked())

    monkeypatch.setattr(resource_tracker, "_resource_tracker", tracker := resource_tracker.ResourceTracker())
    monkeypatch.setattr(resource_tracker, "ensure_running", tracker.ensure_running)
    monkeypatch.setattr(forkserver, "ensure_running", ensure_running)
    worker_context("cpu")
    assert call_in_child(Starting(), print) == (True, "")  # type: ignore[arg-type]
    assert seen == [True] and not blocked()
    tracker._stop()


def test_a_ctrl_c_while_the_trial_starts_ends_it() -> None:
    class InterruptedStart(Starting):
        killed = False

        def start(self) -> None:
            signal.raise_signal(signal.SIGINT)

        def kill(self) -> None:
            self.killed = True

    starting = InterruptedStart()
    with pytest.raises(KeyboardInterrupt):
        call_in_child(starting, print)  # type: ignore[arg-type]
    assert starting.killed


SCRIPT = """
import os, sys
from concurrent.futures.process import BrokenProcessPool
from trainer.train import child_processes

cores, dies = map(int, sys.argv[1:])
os.sched_getaffinity = lambda _: set(range(cores))

def work(number):
    if number == dies:
        os.abort()
    return number, os.getpid() != parent

parent = os.getpid()
try:
    print(list(child_processes.in_processes(work, range(3))))
except BrokenProcessPool:
    print("one died")
"""


@pytest.mark.parametrize(
    ("cores", "dies", "told"),
    [
        (1, 9, [(0, False), (1, False), (2, False)]),
        (2, 9, [(0, True), (1, True), (2, True)]),
        (2, 1, "one died"),
    ],
)
def test_work_is_done_in_a_process_a_core(cores: int, dies: int, told: Any) -> None:
    command = [sys.executable, "-c", SCRIPT, str(cores), str(dies)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.strip() == str(told), done.stderr
