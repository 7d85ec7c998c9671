"""The quick start and the page on retrains, carried out as they stand: real models, a receipt, and nothing
left.
"""

from __future__ import annotations

import csv
import json
import re
import socket
from collections.abc import Callable
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pytest

from tests.desk import Desk
from tests.pages import ROOT, block_of, commands_of
from trainer.data.read.candles import Candles, time_text
from trainer.data.synthetic import synthetic_candles

QUICK_START, RUNS = ROOT / "docs/quick-start.md", ROOT / "docs/runs.md"
SCHEDULED = "weekly"
SYMBOLS = ("BTC-USD", "ETH-USD", "SOL-USD")
PHASES = ["preflight", "capacity", "boot", "stage", "train", "upload", "terminate"]


def write_csv(folder: Path, candles: Candles) -> None:
    """Write a file of candles as the quick start describes one."""
    columns = (candles.open, candles.high, candles.low, candles.close, candles.volume)
    rows = [
        ",".join([time_text(at), *(f"{value:.6f}" for value in values)])
        for at, *values in zip(candles.timestamp, *columns, strict=True)
    ]
    folder.mkdir(exist_ok=True)
    text = "\n".join(["time,open,high,low,close,volume", *rows])
    (folder / f"{candles.symbol}_{candles.timeframe}.csv").write_text(f"{text}\n")


@pytest.fixture(params=["desk", pytest.param("desk_with_own_checkout", marks=pytest.mark.nightly)])
def launcher(request: pytest.FixtureRequest) -> Desk:
    """A desk whose processes are forks; at night, one that starts each Python anew, from a copy of the checkout
    that breaks under it: half a minute more of two cores.
    """
    desk: Desk = request.getfixturevalue(request.param)
    return desk


@pytest.mark.slow
def test_the_quick_start_trains_looks_and_leaves_nothing(
    launcher: Desk, desk_python: Path, shared: dict[str, str], eventually: Callable[..., Any]
) -> None:
    candles = launcher.folder / "candles"
    for symbol in SYMBOLS:
        write_csv(candles, synthetic_candles(symbol, bars=800, timeframe="1h"))
    commands = commands_of(QUICK_START, "## Rehearse, without an account")
    # Its fetch and check have a test of their own: tests/end_to_end/test_fetch.py.
    first, *others = [command for command in commands if command.verb != "data"]
    assert first.verb == "launch"
    run = launcher.start(*first.words)
    note = launcher.home / "server.json"
    address = eventually(lambda: note.exists() and note.read_text())
    # The instance exists, so everything that it needs is uploaded: it needs neither the checkout nor the
    # desk's folders.
    eventually(lambda: list(launcher.home.glob("sandbox/*")))
    candles.rename(kept := launcher.folder / "kept")
    if launcher.checkout != ROOT:
        for file in (launcher.checkout / "trainer" / "train").glob("*.py"):
            file.write_text("raise SystemExit('the checkout is broken')\n")
    out, err = run.communicate(timeout=500)
    assert run.returncode == 0, err
    # The samples in README and docs have the form that is printed now: else, run scripts/screens --samples.
    sample = labels(block_of("README.md", "text", "outcome"))
    assert labels(out) == sample

    # What it made is found by the commands that come after, and these leave nothing either.
    kept.rename(candles)
    desk = replace(launcher, checkout=ROOT, shared=shared, python=desk_python)
    (receipt,) = json.loads(desk.run("receipts", "--rehearse", "--json").stdout)["receipts"]
    is_whole(receipt)
    assert len(json.loads(desk.run("models", "list", "--rehearse", "--json").stdout)["models"]) == 3
    looks = commands_of(RUNS, "# Runs") + commands_of(RUNS, "## Predictions")[:1]
    assert {command.verb for command in looks} == {*("status", "logs", "stop", "pull", "receipts", "predict")}
    printed = {}
    for command in (*looks, *others):
        words = [receipt["run_id"] if word == "RUN" else word for word in command.words]
        done = desk.run(*words, *(() if command in others else ("--rehearse",)))
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        printed[command.words[:2]] = done
    assert labels(printed["receipts", "RUN"].stdout) == sample
    predicted = printed["predict", "--run"]
    assert (
        predicted.stdout.splitlines()[0] == block_of("docs/runs.md", "text", "model,symbol").splitlines()[0]
    )
    symbols = [row["symbol"] for row in csv.DictReader(predicted.stdout.splitlines())]
    assert [symbol for symbol, _ in groupby(symbols)] == list(SYMBOLS)
    assert "expire" not in predicted.stderr  # a stack keeps models of runs unless it sets a date
    eventually(lambda: not desk.processes())
    port = urlparse(json.loads(address)["url"]).port
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0, "the port is still open"


@pytest.mark.nightly
def test_the_quick_start_trains_at_a_desk(desk: Desk) -> None:
    # One symbol: the page's second training takes every one.
    write_csv(desk.folder / "candles", synthetic_candles(SYMBOLS[0], bars=800, timeframe="1h"))
    for command in commands_of(QUICK_START, "## Train at your desk"):
        done = desk.run(*command.words)
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        if command.verb == "predict":
            rows = list(csv.DictReader(done.stdout.splitlines()))
            assert list(rows[0]) == ["model", "symbol", "bar", "available_at", "probability"]
            assert [row["symbol"] for row in rows] == [SYMBOLS[0]] * 5
    assert len(list((desk.folder / "models").glob("*.safetensors"))) == 2


def is_whole(receipt: dict[str, Any]) -> None:
    """Assert what a receipt says of a run that is done: its models, its machine, its phases."""
    assert receipt["state"] == "done" and receipt["exit_code"] == 0 and receipt["retries"] == 0
    assert [model["piece"] for model in receipt["models"]] == list(SYMBOLS)
    for model in receipt["models"]:
        assert model["version_id"] and len(model["sha256"]) == 64 and model["metrics"]["test"]["auc"] > 0
        own = f":{receipt['instances'][-1]['instance_id']}/{receipt['run_id']}/1/"  # after its role's id
        assert model["key"].startswith("models/experiments/AROA")
        assert model["key"].endswith(f"{own}lstm-direction_{model['piece']}_1h.safetensors")
    (instance,) = receipt["instances"]
    assert instance["state"] == "terminated" and instance["proof"] == "described terminated"
    assert receipt["dollars"]["spent_low"] <= receipt["dollars"]["spent_high"]
    seconds = receipt["seconds"]
    assert sum(seconds[phase] for phase in PHASES) == pytest.approx(seconds["total"], abs=0.01)
    assert receipt["data"]["synthetic"] is False and receipt["data"]["bars"] == 2400
    assert receipt["place"] == "rehearsal"


def labels(receipt: str) -> list[str]:
    """Return the words at the left edge of a receipt."""
    return re.findall(r"^  (\w+) ", receipt, re.MULTILINE)


@pytest.mark.nightly
def test_the_retrain_of_the_page_runs_in_a_rehearsal(desk: Desk, eventually: Callable[..., Any]) -> None:
    """Its schedule is the page's file, and control's calls and machines are the rehearsal's own. Settings are
    refused before it and while a machine runs.
    """
    write_csv(desk.folder / "candles", synthetic_candles("BTC-USD", bars=800, timeframe="1h"))
    (desk.folder / "retrains.yaml").write_text(block_of("docs/runs.md", "yaml", "mayfly:retrains:"))
    (desk.folder / "bad.yaml").write_text("config: {owner: '?'}")
    (desk.folder / "job.toml").write_text(block_of("docs/quick-start.md", "toml", 'set = "main"'))
    commands = commands_of(RUNS, "### Commands")
    first = next(number for number, command in enumerate(commands) if command.verb == "rehearse")
    settings, launch, *retrain = commands[first:]
    assert all("--rehearse" in command.words for command in (launch, *retrain)) and launch.verb == "launch"
    of_an_account = {command.words for command in commands[:first]}
    assert {command.words for command in commands_of(QUICK_START, "## Retrain every week")} <= of_an_account

    def mayfly(*words: str) -> str:
        done = desk.run(*words)
        assert done.returncode == 0, f"{words}\n{done.stderr}"
        return done.stdout

    undeclared = desk.run(*retrain[0].words)
    assert undeclared.returncode == 2 and "mayfly rehearse --settings FILE" in undeclared.stderr
    assert [line.partition(":")[0] for line in mayfly(*settings.words).splitlines()] == ["retrains"]
    refused = json.loads(desk.run("rehearse", "--settings", "bad.yaml", "--json").stdout)["error"]
    assert "Setting 'owner' is '?'" in refused["why"]

    run = desk.start(*launch.words)
    eventually(lambda: desk.events("model_started"))
    running = json.loads(desk.run(*settings.words, "--json").stdout)["error"]["what"]
    assert running.endswith("of the rehearsal is running")
    _, err = run.communicate(timeout=500)
    assert run.returncode == 0, err

    def settled() -> bool:
        (entry,) = desk.stored(f"scheduled/{SCHEDULED}/").values() or (b"{}",)
        return bool(json.loads(entry).get("told_at"))

    for command in retrain:
        shown = mayfly(*command.words)
        if command.words[:2] == ("retrains", "run"):
            eventually(settled)
    assert " done " in shown.splitlines()[-1]
    others = [command.words for command in commands[:first] if command.words[1] in ("preview", "list")]
    pauses = (("retrains", "pause", SCHEDULED), ("retrains", "pause", SCHEDULED, "--off"))
    told = {words[1:]: mayfly(*words, "--rehearse") for words in (*others, *pauses)}
    assert told["preview", SCHEDULED].count("next  Sun ") == 3 and "done" in told["list",]
    assert "is paused" in told["pause", SCHEDULED] and "is resumed" in told["pause", SCHEDULED, "--off"]
