"""The progress of files on their way, as a line and as a bar."""

from __future__ import annotations

import io
from typing import Any

from trainer.cli.terminal import QUIET_SECONDS, Console
from trainer.cli.views.drawing import drawn
from trainer.cli.views.transfer import TransferProgress


def test_a_pipe_gets_a_line_now_and_then() -> None:
    now = [0.0]
    out = io.StringIO()
    console = Console(out, clock=lambda: now[0])
    progress = TransferProgress(console, "pushing", 40_000_000, clock=lambda: now[0])
    for _ in range(4):
        now[0] += QUIET_SECONDS
        progress(10_000_000)
        progress(0)  # too soon
    progress(-40_000_000)  # it began anew
    assert out.getvalue().splitlines() == [
        "pushing 10.0 of 40.0 MB, 25%, 1.0 MB/s, 30s left",
        "pushing 20.0 of 40.0 MB, 50%, 1.0 MB/s, 20s left",
        "pushing 30.0 of 40.0 MB, 75%, 1.0 MB/s, 10s left",
        "pushing 40.0 of 40.0 MB, 100%, 1.0 MB/s, 0s left",
    ]
    assert progress.line() == "pushing 0.0 of 40.0 MB, 0%"


def test_a_terminal_gets_a_bar() -> None:
    progress = TransferProgress(Console(io.StringIO(), plain=True), "pulling", 2_000_000, clock=lambda: 0.0)
    progress(1_000_000)
    picture: Any = progress.picture()
    assert "━" in drawn(picture, width=80) and "pulling 1.0 of 2.0 MB, 50%" in drawn(picture, width=80)
    assert TransferProgress(Console(io.StringIO()), "pushing", 0).line() == "pushing 0.0 of 0.0 MB"
