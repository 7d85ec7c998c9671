"""Whole runs as a user starts them, killed and stopped; test_docs.py has one that is left alone."""

from __future__ import annotations

import json
import os
import signal

import pytest

from tests.desk import QUICK
from tests.jobs import sets

ENDLESS = ("--epochs", "100000", *sets("train.patience=100000", "expert.tune=never"))  # tuning: test_tuned.py


def only_json(text: str) -> dict:
    """Read stdout, which is one JSON document and nothing else."""
    assert text.strip().startswith("{") and text.strip().endswith("}")
    return json.loads(text)


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
    assert receipt["data"]["synthetic"] is True and receipt["data"]["bars"] == 7500
    kept = only_json(desk.run("receipts", receipt["run_id"], "--rehearse", "--json").stdout)
    assert kept == receipt


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
