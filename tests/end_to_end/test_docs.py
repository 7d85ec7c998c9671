"""The quick start and the page on retrains, carried out as they stand: each command in its order."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from scripts.weekly import Weeks, desk_variables, weeks
from tests.aws.server import CheckedAws
from tests.desk import Desk
from tests.pages import ROOT, block_of, commands_of
from tests.retrains import CONFIG
from tests.sessions import forget_sessions
from trainer.cli.main import main
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


@pytest.fixture
def story(
    programs: Path, fork_server: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Weeks]:
    """An account with retrains and a data set, whose nodes run as forks; a desk with the page's job."""
    (tmp_path / "job.toml").write_text(block_of("docs/quick-start.md", "toml", 'set = "main"'))
    given = {"fork_nodes": True, "fork_server": lambda: fork_server, "grace_seconds": 120}
    with CheckedAws(programs=programs, **given) as aws, weeks(aws, CONFIG) as story:
        for name, value in desk_variables(story.access).items():
            monkeypatch.setenv(name, value)
        monkeypatch.chdir(tmp_path)
        forget_sessions()
        story.name = SCHEDULED
        story.bring_candles(tmp_path)
        yield story
        forget_sessions()


def test_the_commands_of_a_retrain_run_as_their_page_says(
    story: Weeks, capsys: pytest.CaptureFixture[str], eventually: Callable[..., Any]
) -> None:
    listed = [one for one in commands_of(RUNS, "### Commands") if one.verb == "retrains"]
    commands = [one for one in listed if "--rehearse" not in one.words]
    assert [one.words[1] for one in commands] == ["publish", "preview", "run", "list", "history"]
    assert {one.words for one in commands_of(QUICK_START, "## Retrain every week")} <= {
        one.words for one in commands
    }
    shown = {}
    for command in commands:
        assert main(list(command.words)) == 0, f"{command}\n{capsys.readouterr().err}"
        shown[command.words[1]] = capsys.readouterr().out
        if command.words[1] == "run":
            (entry,) = eventually(story.entries)
            list(story.watch(entry.scheduled_at))
    assert f"published {SCHEDULED}: job " in shown["publish"]
    assert shown["preview"].count("next  Sun ") == 3 and "UTC" in shown["preview"]
    assert " done " in shown["history"] and shown["run"].strip() in shown["history"]
    assert "done" in shown["list"]
    for words, said in ((("pause", SCHEDULED), "is paused"), (("pause", SCHEDULED, "--off"), "is resumed")):
        assert main(["retrains", *words]) == 0  # in the page's text
        assert f"{SCHEDULED} {said}" in capsys.readouterr().out
