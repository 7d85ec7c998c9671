"""How long work may be without a sign of progress."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.processes import await_stop_of
from trainer.base import signs
from trainer.base.process_state import abort, state_of, ticks_of
from trainer.base.silence import (
    FIRST_SECONDS,
    LEAST_SECONDS,
    MOST_SECONDS,
    SPREAD,
    ProgressClock,
    bound_seconds,
)


@pytest.mark.parametrize(
    ("pauses", "spanned", "bound"),
    [
        ([], 0.0, FIRST_SECONDS),
        ([1.0] * 9, 9.0, FIRST_SECONDS),  # a burst as it begins is no rate
        ([1.0] * 400, 400.0, LEAST_SECONDS),
        ([1.0, 60.0, 240.0], 301.0, SPREAD * 240.0),
        ([100.0], 100.0, SPREAD * 100.0),
        ([900.0], 900.0, MOST_SECONDS),
    ],
)
def test_the_bound_follows_from_the_pauses_so_far(pauses, spanned, bound):
    assert bound_seconds(pauses, spanned=spanned) == bound


def test_signs_move_the_clock_and_set_its_bound():
    clock = ProgressClock(began=100.0)
    assert (clock.bound, clock.is_silent(1000.0), clock.is_silent(1000.1)) == (900.0, False, True)
    for second in range(400):
        clock.sign(100.0 + second)
    assert (clock.at, clock.bound) == (499.0, LEAST_SECONDS)
    assert not clock.is_silent(799.0) and clock.is_silent(799.1)
    clock.sign(799.5)
    assert clock.bound == SPREAD * 300.5
    clock.begin(5000.0)  # it was idle
    assert clock.at == 5000.0
    clock.sign(5001.0)
    assert clock.bound == SPREAD * 300.5, "its idle time is no pause"


def test_faster_signs_are_one_and_old_pauses_are_forgotten():
    clock = ProgressClock(began=0.0)
    clock.sign(50.0)
    for tenth in range(1, 500):
        clock.sign(50.0 + tenth / 10)
    assert clock.bound == SPREAD * 50.0, "one pause a second"
    for half in range(1, 1200):
        clock.sign(100.0 + half / 2)
    assert clock.bound == LEAST_SECONDS, "the 50 s before its first sign were more than 100 pauses ago"


def test_what_stirs_counts_only_before_the_first_rate():
    clock = ProgressClock(began=0.0)
    clock.stir(800.0)
    assert clock.at == 800.0 and not clock.is_silent(1600.0)
    clock.sign(1600.0)
    assert clock.has_rate and clock.bound == MOST_SECONDS, "1600 s passed before its first sign"
    clock.stir(3000.0)
    assert clock.at == 1600.0


def test_a_sign_is_told_at_most_every_few_seconds(monkeypatch):
    now, told = [0.0], []
    monkeypatch.setattr(signs.time, "monotonic", lambda: now[0])
    signs.sign("nobody listens")
    signs.tell_signs(told.append)
    try:
        for second in range(12):
            now[0] = float(second)
            signs.sign("validation")
    finally:
        signs.tell_signs(None)
    assert told == [{"event": "moved", "of": "validation"}] * 3


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_stopped_process_shows_its_state_and_writes_its_stacks():
    busy = (
        "while time.process_time() < 0.05: pass"  # some ticks of the kernel's clock, however fast it starts
    )
    text = (
        f"import faulthandler, sys, time\nfaulthandler.enable()\n{busy}\nprint(flush=True)\nsys.stdin.read()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert child.stdout is not None
    child.stdout.readline()
    os.kill(child.pid, signal.SIGSTOP)
    await_stop_of(child.pid)
    assert "state T (stopped)" in state_of(child.pid) and "faulthandler.enable()" in state_of(child.pid)
    assert ticks_of(child.pid) > 0
    assert abort(child.pid)
    _, stacks = child.communicate()
    assert child.returncode == -signal.SIGABRT and b'File "<string>"' in stacks
    assert state_of(child.pid) == "" and not abort(child.pid) and ticks_of(child.pid) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_process_that_writes_no_stacks_is_not_aborted():
    child = subprocess.Popen(["sleep", "1000"])
    try:
        assert not abort(child.pid) and child.poll() is None
    finally:
        child.kill()
        child.wait()
