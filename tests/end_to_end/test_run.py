"""Whole runs as a user starts them: one command, real models, a receipt, and nothing left."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import time
from pathlib import Path
from urllib.parse import urlparse

import pytest

PHASES = ["preflight", "capacity", "boot", "stage", "train", "upload", "terminate"]


def only_json(text: str) -> dict:
    """Read stdout, which is one JSON document and nothing else."""
    assert text.strip().startswith("{") and text.strip().endswith("}")
    return json.loads(text)


@pytest.mark.slow
def test_one_command_trains_every_symbol_and_leaves_nothing_running(desk, candles, eventually):
    run = desk.launch("--data", str(candles), "--epochs", "1")
    address = eventually(lambda: (desk.home / "server.json").exists() and (desk.home / "server.json").read_text())
    out, err = run.communicate(timeout=250)
    assert run.returncode == 0, err
    receipt = only_json(out)

    assert receipt["state"] == "done" and receipt["exit_code"] == 0 and receipt["retries"] == 0
    assert sorted(model["symbol"] for model in receipt["models"]) == ["AAA", "BBB", "CCC"]
    for model in receipt["models"]:
        assert model["version_id"] and len(model["sha256"]) == 64 and model["metrics"]["test"]["auc"] > 0
        assert model["key"] == f"models/experiments/{receipt['run_id']}/1/lstm-direction_{model['symbol']}_1m.safetensors"
    (instance,) = receipt["instances"]
    assert instance["state"] == "terminated" and instance["proof"] == "described terminated"
    assert receipt["dollars"]["spent_low"] <= receipt["dollars"]["spent_high"]
    assert sum(receipt["seconds"][phase] for phase in PHASES) == pytest.approx(receipt["seconds"]["total"], abs=0.01)
    assert receipt["data"]["synthetic"] is True and receipt["data"]["bars"] == 7500
    assert receipt["rehearsal"]

    # What it made is found by the commands that come after, and these leave nothing either.
    assert len(json.loads(desk.run("models", "list", "--rehearse", "--json").stdout)["models"]) == 3
    kept = json.loads(desk.run("receipts", receipt["run_id"], "--rehearse", "--json").stdout)
    assert kept == receipt
    predicted = desk.run("predict", receipt["models"][0]["key"], "--rehearse", "--data", str(candles), "--last", "3")
    assert predicted.returncode == 0, predicted.stderr
    assert predicted.stdout.splitlines()[0] == "bar,available_at,probability" and len(predicted.stdout.splitlines()) == 4
    pulled = desk.run("pull", receipt["run_id"], "--rehearse", "--out", "pulled")
    assert pulled.returncode == 0, pulled.stderr
    assert len(list((desk.folder / "pulled").rglob("*.safetensors"))) == 3

    eventually(lambda: not desk.processes(), seconds=10)
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", urlparse(json.loads(address)["url"]).port)) != 0, "the port is still open"


@pytest.mark.slow
def test_the_node_needs_neither_the_checkout_nor_the_desks_folders(desk_with_own_checkout, candles, eventually):
    desk = desk_with_own_checkout
    data = desk.folder / "candles"
    shutil.copytree(candles, data)
    run = desk.launch("--data", str(data), "--epochs", "2")
    eventually(lambda: list(desk.home.glob("sandbox/*")))  # the instance exists, so everything it needs is uploaded
    shutil.rmtree(data)
    for file in (desk.checkout / "trainer" / "train").glob("*.py"):
        file.write_text("raise SystemExit('the checkout is broken')\n")
    out, err = run.communicate(timeout=250)
    assert run.returncode == 0, err
    assert only_json(out)["state"] == "done"


@pytest.mark.slow
def test_a_killed_launcher_leaves_a_run_that_ends_and_is_settled_by_the_next_command(desk, candles, eventually):
    run = desk.launch("--data", str(candles), "--epochs", "2")
    eventually(lambda: desk.events("model_started"))
    run.kill()
    run.communicate()
    eventually(lambda: not desk.processes())  # the node ends by itself, then the embedded AWS does

    told = desk.run("status", "--rehearse", "--json")
    assert told.returncode == 0, told.stderr
    (run_id,) = [told_of["run_id"] for told_of in json.loads(told.stdout)["runs"]]
    receipt = json.loads(desk.run("receipts", run_id, "--rehearse", "--json").stdout)
    assert receipt["state"] == "done" and len(receipt["models"]) == 3
    assert receipt["instances"][0]["state"] == "terminated"


def kill_worker(desk, symbol: str, times: int, eventually) -> None:
    """Kill the worker that trains a symbol, each time it has begun."""
    for time_number in range(times):
        started = eventually(
            lambda wanted=time_number + 1: [item for item in desk.events("model_started") if item["symbol"] == symbol][
                wanted - 1 :
            ],
        )
        os.kill(started[0]["pid"], signal.SIGKILL)


@pytest.mark.slow
def test_a_worker_killed_once_is_tried_again(desk, candles, eventually):
    run = desk.launch("--data", str(candles), "--epochs", "3")
    kill_worker(desk, "BBB", 1, eventually)
    out, err = run.communicate(timeout=250)
    assert run.returncode == 0, err
    receipt = only_json(out)
    assert receipt["retries"] == 1 and len(receipt["models"]) == 3 and receipt["failed"] == []


@pytest.mark.slow
def test_a_worker_killed_twice_is_one_failed_model_and_the_others_are_there(desk, candles, eventually):
    run = desk.launch("--data", str(candles), "--epochs", "3")
    kill_worker(desk, "BBB", 2, eventually)
    out, err = run.communicate(timeout=250)
    assert run.returncode == 100, err
    receipt = only_json(out)
    assert receipt["state"] == "failed" and receipt["retries"] == 1
    assert [item["symbol"] for item in receipt["failed"]] == ["BBB"]
    assert sorted(model["symbol"] for model in receipt["models"]) == ["AAA", "CCC"]


@pytest.mark.slow
def test_the_first_ctrl_c_ends_the_run(desk, candles, eventually):
    run = desk.launch("--data", str(candles), "--epochs", "200", "--set", "patience=200")
    eventually(lambda: desk.events("model_started"))
    run.send_signal(signal.SIGINT)
    out, err = run.communicate(timeout=250)
    assert run.returncode == 130, err
    receipt = only_json(out)
    assert receipt["state"] == "stopped" and receipt["instances"][0]["state"] == "terminated"


@pytest.mark.slow
def test_the_second_ctrl_c_detaches_and_says_until_when(desk, candles, eventually):
    run = desk.launch("--data", str(candles), "--epochs", "200", "--set", "patience=200", "--max-duration", "30m")
    eventually(lambda: desk.events("model_started"))
    run.send_signal(signal.SIGINT)
    time.sleep(0.3)
    run.send_signal(signal.SIGINT)
    out, err = run.communicate(timeout=250)
    assert run.returncode == 130 and "deadline" in (out + err)


def test_no_credentials_and_no_stack_says_what_is_missing_and_offers_a_rehearsal(desk):
    refused = desk.run("launch", "--instance", "g5.12xlarge", "--data", str(Path(__file__).parent))
    assert refused.returncode == 103
    (line,) = [line for line in refused.stderr.splitlines() if line.startswith("error:")]
    assert "credentials" in line and "--rehearse" in line
    assert "Traceback" not in refused.stderr


def test_a_desk_without_a_stack_reads_as_one_json_error(desk):
    refused = desk.run("launch", "--instance", "g5.12xlarge", "--data", str(Path(__file__).parent), "--json")
    assert refused.returncode == 103
    assert set(only_json(refused.stdout)["error"]) == {"code", "what", "why", "do"}


def test_nothing_is_started_for_a_folder_that_does_not_exist(desk):
    refused = desk.run("launch", "--rehearse", "--instance", "p3.8xlarge", "--data", "nowhere", "--json")
    assert refused.returncode == 2
    assert "nowhere" in only_json(refused.stdout)["error"]["what"]
    assert not list(desk.home.glob("sandbox/*"))
