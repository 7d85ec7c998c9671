"""Twenty agents on a rehearsed machine with four GPUs, one worker of which is killed; and agents without a
GPU.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.jobs import sets
from trainer.data.synthetic import main as write_synthetic

AGENTS = sets(
    "target.name=position",
    "model.name=mlp",
    "model.lookback=8",
    "model.hidden=16",
    "train.batch=64",
    "agent.lanes=8",
    "agent.updates=2",
    "expert.tune=never",
)


def coins(folder: Path, names: list[str]) -> None:
    """Write candles of random walks to the folder `coins`."""
    words = ["--symbols", ",".join(names), "--bars", "3000", "--timeframe", "1h"]
    assert write_synthetic(["--out", str(folder / "coins"), *words]) == 0


@pytest.mark.nightly
@pytest.mark.timeout(1_800)
def test_twenty_agents_are_each_there_once(desk: Any, tmp_path: Path, eventually: Callable[..., Any]) -> None:
    names = [f"C{number:02d}-USD" for number in range(20)]
    coins(tmp_path, names)
    long = ("--epochs", "12", *sets("train.patience=12", "train.checkpoint_seconds=1", "name=coins"))
    run = desk.start(
        *("launch", "--rehearse", "--json", "--instance", "g5.12xlarge"),
        *("--data", str(tmp_path / "coins"), *AGENTS, *long),
    )
    saved = eventually(lambda: desk.events("checkpoint"))[0]
    os.kill(saved["pid"], signal.SIGKILL)
    out, err = run.communicate(timeout=1_500)
    assert run.returncode == 0, err[-2_500:]
    receipt = json.loads(out)
    assert receipt["state"] == "done" and receipt["retries"] >= 1 and receipt["failed"] == []
    assert sorted(model["piece"] for model in receipt["models"]) == names
    assert saved["piece"] in [event["piece"] for event in desk.events("resumed")]
    assert len({event["worker"] for event in desk.events("model_started")}) == 4
    pulled = desk.run("pull", receipt["run_id"], "--rehearse", "--out", "pulled")
    assert pulled.returncode == 0, pulled.stderr
    cards = list((desk.folder / "pulled").rglob("mlp-position_*.json"))
    assert len(cards) == 20 and all("growth" in card.read_text() for card in cards)


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_agents_train_on_the_cores_of_a_machine_without_a_gpu(desk: Any, tmp_path: Path) -> None:
    coins(tmp_path, ["A-USD", "B-USD", "C-USD"])
    run = desk.run(
        *("launch", "--rehearse", "--json", "--instance", "c7i.2xlarge", "--epochs", "1"),
        *("--data", str(tmp_path / "coins"), *AGENTS),
    )
    assert run.returncode == 0, run.stderr[-2_500:]
    receipt = json.loads(run.stdout)
    assert [one["instance_type"] for one in receipt["instances"]] == ["c7i.2xlarge"]
    assert len(receipt["models"]) == 3
    workers = {event["worker"] for event in desk.events("model_started")}
    assert len(workers) == min(3, 4, len(os.sched_getaffinity(0)))  # four cores there, these here
