"""Whole runs as a user starts them: one command, real models, a receipt, and nothing left."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import socket
from dataclasses import replace
from urllib.parse import urlparse

import pytest

from tests.desk import QUICK, ROOT
from tests.jobs import sets

ENDLESS = ("--epochs", "100000", *sets("train.patience=100000", "expert.tune=never"))  # tuning: test_tuned.py
PHASES = ["preflight", "capacity", "boot", "stage", "train", "upload", "terminate"]


def only_json(text: str) -> dict:
    """Read stdout, which is one JSON document and nothing else."""
    assert text.strip().startswith("{") and text.strip().endswith("}")
    return json.loads(text)


@pytest.mark.slow
def test_one_command_trains_every_symbol_and_leaves_nothing(
    desk_with_own_checkout, candles, shared, eventually
):
    launcher = desk_with_own_checkout
    data = launcher.folder / "candles"
    shutil.copytree(candles, data)
    run = launcher.launch("--data", str(data), "--epochs", "1")
    address = eventually(
        lambda: (launcher.home / "server.json").exists() and (launcher.home / "server.json").read_text()
    )
    # The instance exists, so everything that it needs is uploaded: it needs neither the checkout nor the
    # desk's folders.
    eventually(lambda: list(launcher.home.glob("sandbox/*")))
    shutil.rmtree(data)
    for file in (launcher.checkout / "trainer" / "train").glob("*.py"):
        file.write_text("raise SystemExit('the checkout is broken')\n")
    out, err = run.communicate(timeout=500)
    assert run.returncode == 0, err
    receipt = only_json(out)

    assert receipt["state"] == "done" and receipt["exit_code"] == 0 and receipt["retries"] == 0
    assert sorted(model["piece"] for model in receipt["models"]) == ["AAA", "BBB", "CCC"]
    for model in receipt["models"]:
        assert model["version_id"] and len(model["sha256"]) == 64 and model["metrics"]["test"]["auc"] > 0
        own = f":{receipt['instances'][-1]['instance_id']}/{receipt['run_id']}/1/"  # after its role's id
        assert model["key"].startswith("models/experiments/AROA")
        assert model["key"].endswith(f"{own}lstm-direction_{model['piece']}_1m.safetensors")
    (instance,) = receipt["instances"]
    assert instance["state"] == "terminated" and instance["proof"] == "described terminated"
    assert receipt["dollars"]["spent_low"] <= receipt["dollars"]["spent_high"]
    seconds = receipt["seconds"]
    assert sum(seconds[phase] for phase in PHASES) == pytest.approx(seconds["total"], abs=0.01)
    assert receipt["data"]["synthetic"] is True and receipt["data"]["bars"] == 7500
    assert receipt["place"] == "rehearsal"

    # What it made is found by the commands that come after, and these leave nothing either.
    desk = replace(launcher, checkout=ROOT, shared=shared)
    assert len(json.loads(desk.run("models", "list", "--rehearse", "--json").stdout)["models"]) == 3
    kept = json.loads(desk.run("receipts", receipt["run_id"], "--rehearse", "--json").stdout)
    assert kept == receipt
    words = ("--data", str(candles), "--last", "3")
    predicted = desk.run("predict", "--run", receipt["run_id"], "--rehearse", *words)
    assert predicted.returncode == 0, predicted.stderr
    rows = list(csv.DictReader(predicted.stdout.splitlines()))
    assert list(rows[0]) == ["model", "symbol", "bar", "available_at", "probability"]
    assert [row["symbol"] for row in rows] == [symbol for symbol in ("AAA", "BBB", "CCC") for _ in range(3)]
    assert "expire" not in predicted.stderr  # a stack keeps models of runs unless it sets a date

    eventually(lambda: not desk.processes())
    port = urlparse(json.loads(address)["url"]).port
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0, "the port is still open"


def kill_worker(desk, symbol: str, times: int, eventually) -> None:
    """Kill the worker that trains a symbol, each time it has begun."""

    def begun(killed: int) -> list[int]:
        return [item["pid"] for item in desk.events("model_started") if item["piece"] == symbol][killed:]

    for killed in range(times):
        os.kill(eventually(lambda killed=killed: begun(killed))[0], signal.SIGKILL)


@pytest.mark.slow
def test_a_killed_worker_is_retried_once(desk, candles, eventually):
    run = desk.launch("--data", str(candles), "--epochs", "6", "--set", "train.patience=6")
    kill_worker(desk, "AAA", 1, eventually)
    kill_worker(desk, "BBB", 2, eventually)
    out, err = run.communicate(timeout=500)
    assert run.returncode == 100, err
    receipt = only_json(out)
    assert receipt["state"] == "failed" and receipt["retries"] == 2
    assert [item["piece"] for item in receipt["failed"]] == ["BBB"]
    assert sorted(model["piece"] for model in receipt["models"]) == ["AAA", "CCC"]


@pytest.mark.slow
def test_without_a_terminal_the_first_ctrl_c_ends_the_run(desk, candles, eventually):
    run = desk.launch("--data", str(candles), "--symbols", "AAA", *ENDLESS)
    eventually(lambda: desk.events("model_started"))
    run.send_signal(signal.SIGINT)
    out, err = run.communicate(timeout=500)
    assert run.returncode == 130, err
    receipt = only_json(out)
    assert receipt["state"] == "stopped" and receipt["instances"][0]["state"] == "terminated"


@pytest.mark.slow
def test_ctrl_c_at_a_terminal_asks_and_a_left_run_goes_on(desk, candles, eventually):
    words = ("--instance", "p3.8xlarge", *QUICK, "--data", str(candles), "--symbols", "AAA", *ENDLESS)
    typed = desk.type("launch", "--rehearse", *words)
    eventually(lambda: desk.events("model_started"))
    typed.press("\x03")
    eventually(lambda: "leave it running (l)" in typed.shown())
    typed.press("g\n")
    eventually(lambda: "epoch" in typed.shown().rpartition("leave it running (l)")[2])  # the picture goes on
    typed.press("\x03")
    eventually(lambda: typed.shown().count("leave it running (l)") == 2)
    typed.press("l\n")
    assert typed.ends() == 0, typed.shown()
    assert "continues, and ends by" in typed.shown()
    (run,) = only_json(desk.run("status", "--rehearse", "--json").stdout)["runs"]
    assert run["state"] == "running", "no stop was requested"
    assert only_json(desk.run("stop", run["run_id"], "--rehearse", "--json").stdout)["state"] == "stopped"
