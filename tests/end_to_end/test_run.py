"""Whole runs as a user starts them, killed and stopped; test_docs.py has one that is left alone."""

from __future__ import annotations

import json
import os
import signal

import pytest

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


@pytest.mark.nightly
@pytest.mark.slow
def test_without_a_terminal_the_first_ctrl_c_ends_the_run(desk, candles, eventually):
    run = desk.launch("--data", str(candles), "--symbols", "AAA", *ENDLESS)
    eventually(lambda: desk.events("model_started"))
    run.send_signal(signal.SIGINT)
    out, err = run.communicate(timeout=500)
    assert run.returncode == 130, err
    receipt = only_json(out)
    assert receipt["state"] == "stopped" and receipt["instances"][0]["state"] == "terminated"
