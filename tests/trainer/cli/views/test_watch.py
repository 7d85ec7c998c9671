from __future__ import annotations

import io
from dataclasses import replace
from datetime import datetime, timezone

from trainer.aws.place import ACCOUNT
from trainer.cli.terminal import Console
from trainer.cli.views.drawing import drawn
from trainer.cli.views.watch import Watch
from trainer.control.progress import RunProgress
from trainer.control.stop import StopSignal, Wish
from trainer.runs.deadline import Deadline
from trainer.runs.record import InstanceSeen

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=timezone.utc)
START = RunProgress(
    run_id="run-1",
    state="starting",
    outcome=None,
    phase="capacity",
    place=ACCOUNT,
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
    """Return what a pipe gets."""
    stream = io.StringIO()
    watch = Watch(Console(stream, clock=lambda: 0.0), stop or StopSignal())
    for event in events:
        watch.on_event(event)
    return stream.getvalue().splitlines()


class Screen:
    """A console with a terminal, without drawing it: what stays, and the last picture."""

    live = True

    def __init__(self) -> None:
        self.stays: list[str] = []
        self.picture = ""

    def line(self, text: str = "", style: str = "") -> None:
        self.stays.append(text)

    def show(self, renderable) -> None:
        self.stays += drawn(renderable).splitlines()

    def draw(self, picture) -> None:
        self.picture = drawn(picture(), width=80)

    def close(self) -> None:
        self.picture = ""


def seen(*events: RunProgress, stop: StopSignal | None = None, clock=lambda: 0.0) -> Screen:
    """Return what a terminal shows after the events."""
    screen = Screen()
    watch = Watch(screen, stop or StopSignal(), clock=clock)
    for event in events:
        watch.on_event(event)
    return screen


def test_phases_and_instances_are_printed_once():
    booting = replace(START, phase="boot", elapsed_seconds=65, spent_usd=0.25, instances=(SEEN,))
    assert told(START, START, booting, booting) == [
        "[    3s   $0.00]  looking for capacity",
        "[ 1m05s   $0.25]  i-1  us-east-1a  g6.xlarge  on-demand",
        "[ 1m05s   $0.25]  the machine boots",
    ]


def test_each_model_is_said_when_it_is_done():
    pieces = {"A": {"state": "done"}, "B": {"state": "training", "epoch": 1, "epochs": 2}}
    lines = told(replace(START, phase="train", pieces=pieces, models_total=2, models_done=1))
    assert any(line.endswith("A done (1/2)") for line in lines)


def test_what_ctrl_c_does_is_said_once():
    stream, stop = io.StringIO(), StopSignal()
    watch = Watch(Console(stream, clock=lambda: 0.0), stop)
    watch.on_event(START)
    stop.press()
    watch.on_event(START)
    watch.on_event(START)
    lines = stream.getvalue().splitlines()
    assert lines[1] == "Ending the run: what is finished is uploaded, then the machine is terminated."
    assert sum("Ending" in line for line in lines) == 1


def test_a_command_that_stops_a_run_says_nothing_of_ctrl_c():
    event = replace(
        START,
        phase="train",
        pieces={"A": {"state": "training", "epoch": 1, "epochs": 2, "step": 1, "steps": 2}},
    )
    stop = StopSignal(wish=Wish.END)
    text = "\n".join([*told(event, stop=stop), *seen(event, stop=stop).stays, seen(event, stop=stop).picture])
    assert "Ctrl-C" not in text and "Ending" not in text and "ends by 13:00 UTC" in text


def test_a_run_is_left_once_its_machine_is_started():
    stop = StopSignal()
    watch = Watch(screen := Screen(), stop)
    stop.wish = Wish.LEAVE
    watch.on_event(START)
    watch.on_event(START)
    assert screen.stays == ["Leaving the run as soon as its machine is started."]


def test_ended_phases_stay_on_a_terminal_with_their_seconds():
    booting = replace(
        START,
        phase="boot",
        seconds={"preflight": 7, "capacity": 1, "boot": 3},
        instances=(SEEN,),
        state="running",
    )
    screen = seen(START, booting, booting)
    assert screen.stays == [
        "  ✓ preflight     7s",
        "  ✓ capacity      1s   i-1   us-east-1a   g6.xlarge   on-demand",
    ]
    assert screen.picture.startswith("  ● boot          3s")
    ended = replace(booting, state="closed", phase="terminate", seconds={**booting.seconds, "terminate": 2})
    over = seen(booting, ended)
    assert over.stays[-2:] == ["  ✓ boot          3s", "  ✓ terminate     2s"] and over.picture == ""


def test_the_picture_goes_on_between_two_looks():
    now = [0.0]
    event = replace(START, phase="boot", seconds={"boot": 3.0})
    screen = Screen()
    pictures = []
    screen.draw = pictures.append
    Watch(screen, StopSignal(), clock=lambda: now[0]).on_event(event)
    now[0] = 4.0
    assert "boot          7s" in drawn(pictures[-1]())


def test_a_model_that_failed_stays_on_the_screen_once():
    event = replace(START, phase="train", pieces={"A": {"state": "failed"}, "B": {"state": "done"}})
    assert seen(event, event).stays == ["    ✗ A failed"]


def test_an_aws_error_is_said_once_and_a_warning_loudly():
    event = replace(START, last_error="throttled", warning="cannot confirm that i-1 ended")
    lines = told(event, event)
    assert lines.count("AWS: throttled") == 1
    assert lines.count("WARNING: cannot confirm that i-1 ended") == 1


def test_a_value_done_after_a_failure_is_printed_again():
    failed = replace(START, phase="train", work="script", pieces={"a": {"state": "failed"}}, models_total=2)
    done = replace(failed, pieces={"a": {"state": "done"}, "b": {"state": "done"}})
    lines = [
        line.split("]  ")[1] for line in told(failed, failed, done, done) if " a " in line or " b " in line
    ]
    assert lines == ["a failed (1/2)", "a done (1/2)", "b done (2/2)"]


def test_the_count_is_of_all_models_where_a_node_names_some():
    """A node's progress names 2,000 models at most, those at work first."""
    named = {"a": {"state": "done"}, "b": {"state": "training"}}
    training = replace(START, phase="train", state="running", pieces=named, models_total=5_000)
    lines = told(replace(training, models_done=3_412))
    assert any(line.endswith("a done (3,412/5,000)") for line in lines)


def test_a_command_that_looks_on_shows_the_same_and_more_below():
    screen = Screen()
    watch = Watch(screen, None, below=lambda progress: [f"  use of {progress.run_id}"], clock=lambda: 0.0)
    watch.on_event(replace(START, seconds={"preflight": 7, "capacity": 3}))
    assert screen.stays == ["  ✓ preflight     7s"]
    shown = screen.picture.splitlines()
    assert shown[0].startswith("  ● capacity      3s")
    assert shown[1:] == ["      Ctrl-C: stop looking", "  use of run-1"]
