"""An attached launch whose embedded AWS ends under it: it says so, and does not go on as if it trained."""

from __future__ import annotations

import os
import signal

import pytest

from tests.jobs import sets
from trainer.rehearsal.home import read_note


@pytest.mark.nightly
@pytest.mark.slow
def test_a_launch_ends_when_its_embedded_aws_is_gone(desk, candles, eventually):
    long = ("--epochs", "200", *sets("train.patience=200", "expert.tune=never"))
    run = desk.launch("--data", str(candles), "--symbols", "AAA", *long)
    eventually(lambda: list(desk.home.glob("sandbox/*/.mayfly-sandbox")))
    note = read_note(desk.home)
    assert note is not None
    os.kill(note.pid, signal.SIGKILL)
    out, err = run.communicate(timeout=500)
    assert run.returncode == 103, err
    assert '"code": 103' in out and "the embedded AWS has ended" in out and "Traceback" not in err
    # Whoever looks next sees that the node ended with its AWS; its driver would go on with another.
    seen = desk.run("status", "--rehearse")
    assert seen.returncode == 0 and "recovering" in seen.stdout, seen.stderr
    stopped = desk.run("stop", "last", "--rehearse")
    assert stopped.returncode == 0 and "stopped" in stopped.stdout, stopped.stderr
