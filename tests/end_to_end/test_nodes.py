"""Runs on three rehearsed machines, one of which is lost: models and values of a script are each there once."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.desk import Desk, until
from tests.jobs import sets
from trainer.data.synthetic import main as write_synthetic
from trainer.runs.record_json import record_from_json

NODES = ("--instance", "g6.xlarge", "--set", "machine.nodes=3")
TINY = sets("model.hidden=8", "model.lookback=10", "expert.tune=never", "train.checkpoint_seconds=1")


def machines(desk: Desk) -> list[str]:
    """Return the ids of the run's machines, in the order of nodes; [] before all are known."""
    for key, body in desk.stored("runs/").items():
        if key.endswith("/run.json") and (attempt := record_from_json(body).attempt):
            return [one for launch in attempt.launches for one in launch.instance_ids]
    return []


def told(desk: Desk, machine: str, event: str) -> list[dict[str, Any]]:
    """Return the events of that name of a machine's command so far."""
    file = desk.home / "sandbox" / machine / "opt/mayfly/work/events/events.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True) if file.exists() else []
    return [
        one
        for one in map(json.loads, filter(lambda line: line.endswith("\n"), lines))
        if one["event"] == event
    ]


def ends_listed(desk: Desk, machine: str) -> set[str]:
    """Return the trials that S3 knows to have ended on a machine."""
    lists = [
        body for key, body in desk.stored("").items() if machine in key and key.endswith("/outputs.json")
    ]
    return {one["piece"] for body in lists for one in json.loads(body)["scripts"]}


def while_it_runs(run: subprocess.Popen[str], true: Callable[[], Any]) -> Any:
    """Wait until something holds, as long as the launch goes on."""

    def looked() -> Any:
        value = true()
        if not value and run.poll() is not None:
            raise AssertionError(f"the run ended before that: {run.communicate()[1][-2500:]}")
        return value

    return until(looked, seconds=1_000)


def lose(desk: Desk, machine: str) -> None:
    """End a machine as AWS does when its host fails."""
    desk.access().client("ec2").terminate_instances(InstanceIds=[machine])


def check(receipt: dict[str, Any], lost: str) -> None:
    """Check that the run is one attempt of three machines, whose end was seen, and names the lost one."""
    assert receipt["state"] == "done" and len(receipt["attempts"]) == 1
    assert [one["state"] for one in receipt["instances"]] == ["terminated"] * 3
    states = {node["instance_id"]: node["state"] for node in receipt["nodes"]}
    assert len(states) == 3 and states[lost] == "lost"


@pytest.mark.nightly
@pytest.mark.timeout(1_800)
def test_models_of_a_lost_machine_are_trained_by_the_others(desk: Desk, tmp_path: Path) -> None:
    names = [f"C{number:02d}-USD" for number in range(20)]
    words = ["--symbols", ",".join(names), "--bars", "2000", "--timeframe", "1h"]
    assert write_synthetic(["--out", str(tmp_path / "coins"), *words]) == 0
    run = desk.start(
        *("launch", "--rehearse", "--json", *NODES, "--data", str(tmp_path / "coins")),
        *("--epochs", "60", *TINY, *sets("train.patience=60")),
    )
    _, lost, _ = while_it_runs(run, lambda: machines(desk))
    under_way = while_it_runs(run, lambda: told(desk, lost, "checkpoint"))[-1]["piece"]
    lose(desk, lost)
    out, err = run.communicate(timeout=1_500)
    assert run.returncode == 0, err[-2_500:]
    receipt = json.loads(out)
    check(receipt, lost)
    assert sorted(model["piece"] for model in receipt["models"]) == names
    done = [one["piece"] for one in desk.events("model_done")]
    assert under_way in done
    pulled = desk.run("pull", receipt["run_id"], "--rehearse", "--out", "pulled")  # checks each hash
    assert pulled.returncode == 0, pulled.stderr
    assert len(list((desk.folder / "pulled").rglob("*.safetensors"))) == 20


@pytest.mark.nightly
@pytest.mark.timeout(1_800)
def test_studies_of_a_lost_machine_are_searched_by_the_others(desk: Desk, tmp_path: Path) -> None:
    names = [f"C{number:02d}-USD" for number in range(6)]
    words = ["--symbols", ",".join(names), "--bars", "2000", "--timeframe", "1h"]
    assert write_synthetic(["--out", str(tmp_path / "coins"), *words]) == 0
    grid = sets("search.over={train={learning_rate=[0.001,0.003,0.01,0.03]}}", "search.method=grid")
    words = ["--instance", "g6.xlarge", "--data", str(tmp_path / "coins"), "--epochs", "40"]
    run = desk.start(
        *("launch", "--rehearse", "--json", *words, *TINY, *grid),
        *sets("machine.nodes=2", "train.patience=40"),
    )
    head, lost = while_it_runs(run, lambda: machines(desk))
    known = while_it_runs(run, lambda: ends_listed(desk, lost))
    lose(desk, lost)
    out, err = run.communicate(timeout=1_500)
    assert run.returncode == 0, err[-2_500:]
    receipt = json.loads(out)
    assert receipt["state"] == "done" and len(receipt["attempts"]) == 1
    assert {node["instance_id"]: node["state"] for node in receipt["nodes"]} == {head: "done", lost: "lost"}
    assert sorted(model["piece"] for model in receipt["models"]) == names
    trials = sorted(f"{name} t{number}" for name in names for number in range(1, 5))
    assert sorted(one["piece"] for one in receipt["trials"]) == trials, "each once"
    assert {model["metrics"]["about"]["tried"] for model in receipt["models"]} == {4}
    assert told(desk, head, "taken_over")
    begun = {one["piece"] for one in told(desk, head, "model_started")}
    assert not known & begun and begun < {*names, *trials}, "what ended is known"


SCRIPT = """
import os, pathlib, time
number = os.environ["MAYFLY_VALUE_NUMBER"]
out = pathlib.Path(os.environ["MAYFLY_OUT"])
print("at work", flush=True)
time.sleep(3)
(out / "made.txt").write_text(number)
"""


@pytest.mark.nightly
@pytest.mark.timeout(1_800)
def test_values_of_a_lost_machine_run_on_the_others(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "values.csv").write_text("number\n" + "".join(f"{number}\n" for number in range(20)))
    job = tmp_path / "job.toml"
    job.write_text('name = "values"\n[script]\ncommand = "python train.py"\nover = "values.csv"\n')
    run = desk.start("launch", "--rehearse", "--json", "--job", str(job), *NODES, "--max-duration", "30m")
    _, lost, _ = while_it_runs(run, lambda: machines(desk))
    log = desk.home / "sandbox" / lost / "opt/mayfly/work/node.log"
    while_it_runs(run, lambda: log.exists() and "| at work" in log.read_text())
    lose(desk, lost)
    out, err = run.communicate(timeout=1_500)
    assert run.returncode == 0, err[-2_500:]
    receipt = json.loads(out)
    check(receipt, lost)
    assert len({one["piece"] for one in receipt["scripts"]}) == len(receipt["scripts"]) == 20
    assert {one["exit_code"] for one in receipt["scripts"]} == {0}


@pytest.mark.nightly
@pytest.mark.timeout(1_800)
def test_one_model_on_two_machines_goes_on_after_one_is_lost(desk: Desk, tmp_path: Path) -> None:
    words = ["--symbols", "AAA,BBB,CCC", "--bars", "1500", "--timeframe", "1h"]
    assert write_synthetic(["--out", str(tmp_path / "panel"), *words]) == 0
    panel = sets(
        "model.preset=tiny",
        "model.lookback=16",
        "data.panel=true",
        "data.calendar=24x7",
        "train.batch=32",
        "train.patience=30",
        "train.checkpoint_seconds=1",
        "machine.nodes=2",
    )
    run = desk.start(
        *("launch", "--rehearse", "--json", "--instance", "g6.xlarge", "--data", str(tmp_path / "panel")),
        *("--model", "transformer", "--target", "return", "--epochs", "30", *panel),
    )
    head, lost = while_it_runs(run, lambda: machines(desk))
    while_it_runs(run, lambda: told(desk, head, "checkpoint"))
    lose(desk, lost)
    out, err = run.communicate(timeout=1_500)
    assert run.returncode == 0, err[-2_500:]
    receipt = json.loads(out)
    assert receipt["state"] == "done" and len(receipt["models"]) == 1
    first, second = receipt["attempts"]
    assert (first["cause"], second["cause"]) == ("lost", "")
    assert [one["state"] for one in receipt["instances"]] == ["terminated"] * 4
    resumed = [one for one in desk.events("resumed") if one["piece"] == "mayfly"]
    assert resumed and resumed[-1]["step"] > 0
