"""The quick start and the page on retrains, carried out as they stand: each command in its order."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.desk import Desk
from tests.pages import ROOT, block_of, commands_of
from trainer.data.read.candles import Candles, time_text
from trainer.data.synthetic import synthetic_candles

QUICK_START, RUNS = ROOT / "docs/quick-start.md", ROOT / "docs/runs.md"
SCHEDULED = "weekly"


def write_csv(folder: Path, candles: Candles) -> None:
    """Write a file of candles as the quick start describes one."""
    columns = (candles.open, candles.high, candles.low, candles.close, candles.volume)
    rows = [
        ",".join([time_text(at), *(f"{value:.6f}" for value in values)])
        for at, *values in zip(candles.timestamp, *columns, strict=True)
    ]
    folder.mkdir()
    text = "\n".join(["time,open,high,low,close,volume", *rows])
    (folder / f"{candles.symbol}_{candles.timeframe}.csv").write_text(f"{text}\n")


@pytest.mark.slow
def test_the_quick_start_rehearses_trains_and_looks_at_the_run(desk: Desk) -> None:
    write_csv(desk.folder / "candles", synthetic_candles("BTC-USD", bars=800, timeframe="1h"))
    first, *others = commands_of(QUICK_START, "## Rehearse, without an account")
    for command in [first, *others, *commands_of(QUICK_START, "## Train at your desk")]:
        done = desk.run(*command.words)
        assert done.returncode == 0, f"{command}\n{done.stderr}"
    (receipt,) = json.loads(desk.run("receipts", "--rehearse", "--json").stdout)["receipts"]
    assert (receipt["state"], len(receipt["models"])) == ("done", 1)
    assert len(list((desk.folder / "models").glob("*.safetensors"))) == 2
    looks = commands_of(RUNS, "# Runs") + commands_of(RUNS, "## Predictions")[:1]
    assert {command.verb for command in looks} == {*("status", "logs", "stop", "pull", "receipts", "predict")}
    printed = {}
    for command in looks:
        words = [receipt["run_id"] if word == "RUN" else word for word in command.words]
        done = desk.run(*words, "--rehearse")
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        printed[command.words[:2]] = done.stdout
    # The samples in README and docs have the form that is printed now: else, run scripts/screens --samples.
    assert labels(printed["receipts", "RUN"]) == labels(block_of("README.md", "text", "outcome"))
    header = block_of("docs/runs.md", "text", "model,symbol").splitlines()[0]
    assert printed["predict", "--run"].splitlines()[0] == header


def labels(receipt: str) -> list[str]:
    """Return the words at the left edge of a receipt."""
    return re.findall(r"^  (\w+) ", receipt, re.MULTILINE)


@pytest.mark.slow
def test_the_retrain_of_the_page_runs_in_a_rehearsal(desk: Desk, eventually: Callable[..., Any]) -> None:
    """Its schedule is the page's file, and control's calls and machines are the rehearsal's own."""
    write_csv(desk.folder / "candles", synthetic_candles("BTC-USD", bars=800, timeframe="1h"))
    (desk.folder / "retrains.yaml").write_text(block_of("docs/runs.md", "yaml", "mayfly:retrains:"))
    (desk.folder / "job.toml").write_text(block_of("docs/quick-start.md", "toml", 'set = "main"'))
    commands = commands_of(RUNS, "### Commands")
    first = next(number for number, command in enumerate(commands) if command.verb == "rehearse")
    assert all("--rehearse" in command.words for command in commands[first + 1 :])
    of_an_account = {command.words for command in commands[:first]}
    assert {command.words for command in commands_of(QUICK_START, "## Retrain every week")} <= of_an_account

    def ended() -> bool:
        shown = desk.run("retrains", "history", SCHEDULED, "--rehearse", "--json")
        return any(one["state"] in ("done", "failed") for one in json.loads(shown.stdout)["history"])

    for command in commands[first:]:
        done = desk.run(*command.words)
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        if command.words[:2] == ("retrains", "run"):
            eventually(ended)
    assert " done " in done.stdout.splitlines()[-1]

    others = [command.words for command in commands[:first] if command.words[1] in ("preview", "list")]
    shown = {}
    for words in (*others, ("retrains", "pause", SCHEDULED), ("retrains", "pause", SCHEDULED, "--off")):
        done = desk.run(*words, "--rehearse")
        assert done.returncode == 0, done.stderr
        shown[words[1:]] = done.stdout
    assert shown["preview", SCHEDULED].count("next  Sun ") == 3 and "done" in shown["list",]
    assert "is paused" in shown["pause", SCHEDULED] and "is resumed" in shown["pause", SCHEDULED, "--off"]
