"""An agent on this machine: killed, and gone on with by the same command; stopped from elsewhere; ended by
its deadline.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import signal
from pathlib import Path

import pytest

from tests.desk import QUICK, Desk
from tests.jobs import sets
from tests.processes import alive

SCRIPT = """
import os, time
from pathlib import Path

checkpoint = Path(os.environ["MAYFLY_CHECKPOINTS"]) / "last"
first = not checkpoint.exists()
checkpoint.write_text("1")
(Path(os.environ["MAYFLY_OUT"]) / "made.txt").write_text("first" if first else "second")
print("first" if first else "goes on")
(Path(os.environ["TMPDIR"]) / "left").write_text("")
print("tmp", os.environ["TMPDIR"], flush=True)
if first:
    print("waiting", os.getpid(), flush=True)
    time.sleep(600)
"""


@pytest.fixture
def script(desk: Desk) -> str:
    (desk.folder / "wait.py").write_text(SCRIPT)
    return "wait.py"


def at_work(desk: Desk) -> list[Path]:
    """Return the logs of agents whose script waits."""
    return [log for log in desk.home.glob("here/*/node.log") if "| waiting " in log.read_text()]


def agents(desk: Desk) -> list[int]:
    """Return the process ids of the agents that run in this desk's work folders."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words, where = (entry / "cmdline").read_bytes(), (entry / "cwd").readlink()
        except OSError:
            continue
        if b"trainer.node.agent" in words and where.is_relative_to(desk.home / "here"):
            found.append(int(entry.name))
    return found


@pytest.mark.nightly
def test_a_killed_agents_run_is_closed_and_resumed(desk, script, eventually):
    words = ("agent", "--here", "--local", "store", "--script", script, "--json")
    killed = desk.start(*words)
    (log,) = eventually(lambda: at_work(desk))
    waits = int(log.read_text().partition("| waiting ")[2].split()[0])
    twice = desk.run(*words)
    assert twice.returncode == 2 and "this job runs on this machine already" in twice.stdout
    for process in (killed.pid, *agents(desk)):
        os.kill(process, signal.SIGKILL)
    killed.communicate()
    scratch = [Path(line.split()[-1]) for line in log.read_text().splitlines() if "| tmp " in line]
    assert alive(waits) and (scratch[0] / "left").exists(), "nobody is left to end it"

    again = desk.run(*words)
    assert again.returncode == 0, again.stdout + again.stderr
    receipt = json.loads(again.stdout)
    assert "ended 1 process of a run here whose agent was killed" in again.stderr
    eventually(lambda: not alive(waits))  # it was sent SIGKILL
    assert not scratch[0].exists()
    assert receipt["scripts"][0]["last_lines"][0] == "goes on" and receipt["state"] == "done"
    assert not Path(receipt["scripts"][0]["last_lines"][1].split()[-1]).exists()
    assert (receipt["instances"], receipt["dollars"]["spent_high"]) == ([], 0)
    assert receipt["host"] and "No instance" in receipt["note"]
    # It is done: nothing to go on with
    assert not [folder for folder in desk.home.glob("here/*") if folder.is_dir()]
    listed = json.loads(desk.run("receipts", "--local", "store", "--json").stdout)["receipts"]
    assert [(one["state"], one["error"] and one["error"]["what"]) for one in listed] == [
        ("interrupted", "the agent ended without a result"),
        ("done", None),
    ]
    pulled = desk.run("pull", receipt["run_id"], "--local", "store", "--out", "pulled")
    assert pulled.returncode == 0, pulled.stderr
    assert (desk.folder / "pulled/out/made.txt").read_text() == "second"


@pytest.mark.nightly
@pytest.mark.slow
def test_a_run_here_is_stopped_from_elsewhere(desk, script, eventually):
    run = desk.start("agent", "--here", "--rehearse", "--script", script, "--detach", "--json")
    out, err = run.communicate(timeout=500)
    assert run.returncode == 0, out + err
    run_id = json.loads(out)["run_id"]
    eventually(lambda: at_work(desk))
    (shown,) = json.loads(desk.run("status", "--rehearse", "--json").stdout)["runs"]
    assert (shown["state"], shown["instances"], shown["spent_usd"]) == ("running", [], 0)
    stopped = desk.run("stop", run_id, "--rehearse", "--json")
    receipt = json.loads(stopped.stdout)
    assert (stopped.returncode, receipt["state"], receipt["exit_code"]) == (0, "stopped", 130)
    assert [file["file"] for file in receipt["files"]] == ["made.txt"]
    eventually(lambda: not agents(desk))


@pytest.mark.nightly
@pytest.mark.slow
def test_the_deadline_ends_the_run_and_sigterm_does(desk, script, eventually):
    words = ("agent", "--here", "--local", "store", "--script", script, "--json")
    late = desk.run(*words, "--max-duration", "5s")
    assert late.returncode == 104, late.stdout + late.stderr
    expired = json.loads(late.stdout)
    assert (expired["state"], expired["deadline_cause"]) == ("expired", "max_duration")
    waited = at_work(desk)
    (desk.folder / script).write_text(f"{SCRIPT}# other work: nothing to go on with")
    run = desk.start(*words)
    eventually(lambda: set(at_work(desk)) - set(waited))
    run.send_signal(signal.SIGTERM)
    out, err = run.communicate(timeout=500)
    receipt = json.loads(out)
    assert (run.returncode, receipt["state"]) == (130, "stopped"), err
    assert [file["file"] for file in receipt["files"]] == ["made.txt"] and "repeat the command" in err


@pytest.mark.nightly
def test_a_training_into_a_folder_is_read_by_every_verb(desk, candles):
    words = ("--data", str(candles), *sets("data.symbols=AAA", "train.epochs=1", "expert.tune=never"), *QUICK)
    run = desk.run("agent", "--here", "--local", "store", "--json", *words)
    assert run.returncode == 0, run.stdout + run.stderr
    receipt = json.loads(run.stdout)
    run_id = receipt["run_id"]
    assert (receipt["state"], receipt["work"]) == ("done", "train")
    assert (receipt["instances"], receipt["dollars"]["spent_high"]) == ([], 0)
    assert receipt["host"] and "No instance" in receipt["note"]
    (model,) = receipt["models"]
    assert (model["piece"], model["metrics"]["test"]["auc"] > 0) == ("AAA", True)
    assert hashlib.sha256((desk.folder / "store" / model["key"]).read_bytes()).hexdigest() == model["sha256"]
    assert "no instance" in desk.run("receipts", run_id, "--local", "store").stdout

    def look(*verb: str) -> str:
        done = desk.run(*verb, "--local", "store")
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    (shown,) = json.loads(look("status", "--json"))["runs"]
    (listed,) = json.loads(look("models", "list", "--json"))["models"]
    assert (shown["state"], listed["run_id"], listed["sha256"]) == ("done", run_id, model["sha256"])
    look("models", "pull", listed["name"], "--out", "one")
    look("pull", run_id, "--out", "all")
    predicted = look("predict", "--run", run_id, "--data", str(candles), "--last", "3")
    rows = list(csv.DictReader(predicted.splitlines()))
    assert [row["symbol"] for row in rows] == ["AAA"] * 3
    assert look("predict", listed["name"], "--data", str(candles), "--last", "3") == predicted
    for folder in ("one", "all"):
        assert desk.run("predict", folder, "--data", str(candles), "--last", "3").stdout == predicted
