"""A launcher is killed at each phase of a rehearsed run: control alone goes on, with one live machine at most,
and writes the receipt. Real processes; the phases are held at a gate, and the clock is moved.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.desk import QUICK, Desk, until
from tests.gated_aws import CONTROL, Gate, GatedAws, gated_aws
from tests.jobs import sets
from trainer.rehearsal.wire import Call
from trainer.runs.index import read_index
from trainer.runs.keys import of_experiment

pytestmark = pytest.mark.nightly
WORK = ("--epochs", "30", *sets("train.patience=30", "expert.tune=never", "train.checkpoint_seconds=1"))


@pytest.fixture
def aws(desk: Desk, programs: Path, fork_server: Path) -> Iterator[GatedAws]:
    """The desk's embedded AWS, in this process."""
    with gated_aws(desk.home, programs=programs, fork_server=fork_server) as aws:
        yield aws


def put(name: str) -> Callable[[Call], bool]:
    """Take the request that writes a run's object of that name."""
    key = re.compile(rf"runs/[^/]+/{name}")
    return lambda call: call.operation == "PutObject" and bool(key.fullmatch(call.params["Key"]))


def call(operation: str, name: str = "") -> Callable[[Call], bool]:
    """Take a call that is no dry run, whose name ends so."""

    def takes(asked: Call) -> bool:
        named = asked.params.get("Name", "").endswith(name)
        return asked.operation == operation and named and not asked.params.get("DryRun")

    return takes


@dataclass(kw_only=True)
class Launcher:
    """A launch in a process group of its own, and the file that has what it says."""

    process: subprocess.Popen[bytes]
    said: Path

    def until(self, true: Callable[[], Any]) -> Any:
        """Wait until something holds while it runs, and return it."""

        def still() -> Any:
            found = true()
            assert found or self.process.poll() is None, self.said.read_text()
            return found

        return until(still)

    def kill(self) -> None:
        """Kill it as the kernel does, with all that it started."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def launched(desk: Desk, candles: Path, *words: str) -> Launcher:
    """Launch a small training, in a process that is killed with its group."""
    small = ("--instance", "g6.xlarge", "--data", str(candles), "--symbols", "AAA,BBB", "--json")
    command = [
        sys.executable,
        "-m",
        "trainer.cli.main",
        "launch",
        "--rehearse",
        *small,
        *QUICK,
        *WORK,
        *words,
    ]
    said = desk.folder / "said.txt"
    with said.open("wb") as out:
        process = subprocess.Popen(
            command,
            cwd=desk.folder,
            env=desk.environment(),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    return Launcher(process=process, said=said)


def kill_at(launcher: Launcher, gate: Gate) -> None:
    """Kill a launcher while its request is held at the gate."""
    launcher.until(gate.reached.is_set)
    launcher.kill()
    gate.opened.set()


def run_of(aws: GatedAws) -> str:
    """Return the id of the only run."""
    return until(lambda: next(iter(read_index(aws.control().objects).open), ""))


def check_machines(aws: GatedAws, run_id: str, number: int) -> None:
    """Check that a run had so many machines, never two at once, and has none now."""
    machines = aws.machines(run_id)
    assert len(machines) == number
    assert all(one.terminated_at is not None for one in machines)
    for earlier, later in pairwise(machines):
        assert earlier.terminated_at <= later.running_at


def test_killed_before_the_record_there_is_no_run(desk, candles, aws):
    aws.own.gate = gate = Gate(takes=put("run.json"))
    kill_at(launched(desk, candles), gate)
    run_id = run_of(aws)  # in the index alone
    for _ in range(2):
        aws.call_control()
    assert not aws.machines(run_id) and not aws.own.world.is_expecting()
    assert not [key for key in aws.own.writers if key.startswith(f"runs/{run_id}/r")]
    seen = desk.run("status", "--rehearse")
    assert seen.returncode == 0 and "no runs yet" in seen.stdout, seen.stderr


def test_killed_before_the_call_the_run_ends_interrupted(desk, candles, aws):
    aws.own.gate = gate = Gate(takes=call("CreateFleet"))
    kill_at(launched(desk, candles), gate)
    run_id = run_of(aws)
    receipt = aws.settled_by_control(run_id)
    assert (receipt["state"], receipt["exit_code"], receipt["instances"]) == ("interrupted", 105, [])
    assert "the launcher ended before an instance was started" in receipt["error"]["what"]
    assert aws.own.writers[f"runs/{run_id}/receipt.json"] == CONTROL
    check_machines(aws, run_id, 0)


@pytest.mark.parametrize(
    ("takes", "before"),
    [
        (call("CreateFleet"), False),
        (call("CreateSchedule", "-kill-1"), True),
        (call("CreateSchedule", "-kill-1"), False),
    ],
    ids=["the answer is lost", "the second schedule is not armed", "its machine is not told its id"],
)
def test_killed_while_it_boots_the_run_ends_done(desk, candles, aws, takes, before):
    aws.own.gate = gate = Gate(takes=takes, before=before)
    kill_at(launched(desk, candles), gate)
    run_id = run_of(aws)
    receipt = aws.settled_by_control(run_id)
    assert receipt["state"] == "done" and len(receipt["models"]) == 2, receipt["error"]
    assert aws.own.writers[f"runs/{run_id}/receipt.json"] == CONTROL
    check_machines(aws, run_id, 1)


def test_killed_while_it_trains_the_run_ends_done(desk, candles, aws):
    launcher = launched(desk, candles)
    launcher.until(lambda: desk.events("model_started"))
    launcher.kill()
    run_id = run_of(aws)
    receipt = aws.settled_by_control(run_id)
    assert receipt["state"] == "done" and len(receipt["models"]) == 2, receipt["error"]
    assert aws.own.writers[f"runs/{run_id}/receipt.json"] == CONTROL
    check_machines(aws, run_id, 1)


@pytest.mark.parametrize(
    ("takes", "before"),
    [
        (put(r"attempts/2/start\.json"), True),
        (put(r"attempts/2/start\.json"), False),
        (lambda asked: call("CreateFleet")(asked) and "attempt-2" in _tags(asked), True),
    ],
    ids=["before its start file", "after its start file", "before the call"],
)
def test_killed_as_the_next_attempt_begins_control_goes_on(desk, candles, aws, takes, before):
    aws.own.gate = gate = Gate(takes=takes, before=before)
    long = ("--epochs", "150", *sets("train.patience=150"))  # so that it is interrupted at its first report
    kill_at(launched(desk, candles, *long, "--interrupt", "5%,no-notice"), gate)
    run_id = run_of(aws)
    receipt = aws.settled_by_control(run_id)
    assert receipt["state"] == "done", receipt["error"]
    made = {model["piece"]: of_experiment(model["key"])[1] for model in receipt["models"]}
    assert set(made) == {"AAA", "BBB"} and 2 in made.values()
    done = [event["piece"] for event in desk.events("model_done")]
    kept = [
        piece for piece, attempt in made.items() if attempt == 1
    ]  # a machine without notice may lose its last
    assert all(done.count(piece) == 1 for piece in kept), "a model in S3 is not trained again"
    assert aws.own.writers[f"runs/{run_id}/receipt.json"] == CONTROL
    assert aws.record(run_id).driver == "control"
    check_machines(aws, run_id, 2)


def _tags(asked: Call) -> list[str]:
    tags = asked.params["TagSpecifications"][0]["Tags"]
    return [f"{tag['Key']}-{tag['Value']}" for tag in tags]


@pytest.mark.parametrize("before", [True, False], ids=["before the receipt", "after the receipt"])
def test_killed_while_it_settles_the_run_is_closed_by_control(desk, candles, aws, before):
    aws.own.gate = gate = Gate(takes=put(r"receipt\.json"), before=before)
    launcher = launched(desk, candles)
    launcher.until(lambda: desk.events("model_started"))
    run_id = run_of(aws)
    control = aws.own.functions.pop(CONTROL)  # which the end of the machine would call
    kill_at(launcher, gate)
    aws.own.functions[CONTROL] = control
    receipt = aws.settled_by_control(run_id)
    assert receipt["state"] == "done"
    assert aws.own.writers[f"runs/{run_id}/receipt.json"] == (CONTROL if before else "desk")
    assert aws.record(run_id).state == "closed"
    check_machines(aws, run_id, 1)
