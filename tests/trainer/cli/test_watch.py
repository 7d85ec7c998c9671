from __future__ import annotations

import io
from dataclasses import replace
from datetime import datetime, timezone

from trainer.cli.terminal import Console
from trainer.cli.watch import Watch
from trainer.control.progress import RunProgress
from trainer.control.stop import StopSignal
from trainer.runs.deadline import Deadline
from trainer.runs.record import InstanceSeen

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=timezone.utc)
START = RunProgress(
    run_id="run-1",
    state="starting",
    outcome=None,
    phase="capacity",
    elapsed_seconds=3,
    spent_usd=0,
    deadline=Deadline(at=datetime(2026, 11, 20, 13, 0, tzinfo=timezone.utc), cause="budget"),
)
SEEN = InstanceSeen(
    instance_id="i-1",
    attempt=1,
    instance_type="g6.xlarge",
    market="on_demand",
    availability_zone="us-east-1a",
    state="running",
    launched_at=NOW,
)


def told(*events: RunProgress, stop: StopSignal | None = None) -> list[str]:
    stream = io.StringIO()
    watch = Watch(Console(stream, clock=lambda: 0.0), stop or StopSignal(), where=" --rehearse")
    for event in events:
        watch.on_event(event)
    return stream.getvalue().splitlines()


def test_each_phase_and_each_instance_is_said_once_with_time_and_dollars():
    booting = replace(START, phase="boot", elapsed_seconds=65, spent_usd=0.25, instances=(SEEN,))
    assert told(START, START, booting, booting) == [
        "[    3s   $0.00]  looking for capacity",
        "[ 1m05s   $0.25]  i-1  g6.xlarge  on-demand  us-east-1a",
        "[ 1m05s   $0.25]  the machine boots",
    ]


def test_each_model_is_said_when_it_is_done():
    pieces = {"A": {"state": "done"}, "B": {"state": "training", "epoch": 1, "epochs": 2}}
    lines = told(replace(START, phase="train", pieces=pieces, models_total=2, models_done=1))
    assert any(line.endswith("A done (1/2)") for line in lines)


def test_the_first_ctrl_c_says_what_happens_and_what_a_second_one_does():
    stop = StopSignal()
    stop.press()
    lines = told(START, START, stop=stop)
    assert lines[0].startswith("Ctrl-C: ending the run")
    assert lines[1] == "Press it again to leave at once; the deadline stands, 2026-11-20 13:00:00 UTC."
    assert sum("Ctrl-C" in line for line in lines) == 1


def test_an_aws_error_is_said_once_and_a_warning_loudly():
    event = replace(START, last_error="throttled", warning="cannot confirm that i-1 ended")
    lines = told(event, event)
    assert lines.count("AWS: throttled") == 1
    assert lines.count("WARNING: cannot confirm that i-1 ended") == 1
