"""One model on two machines of two ranks each: here processes with a loopback address each."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from tests.jobs import sets
from trainer.base.cluster import Cluster, write_cluster

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="macOS has one loopback address")
MODEL = "transformer-return_mayfly_1m"
PANEL = (
    "model.name=transformer",
    "model.preset=tiny",
    "model.lookback=16",
    "target.name=return",
    "data.panel=true",
    "data.calendar=24x7",
    "train.batch=32",
)


class Nodes:
    """Trainers of one model: a folder, a cluster's file and an address each."""

    def __init__(self, folder: Path, data: Path, python: Sequence[str]) -> None:
        self.folder, self._data, self._python = folder, data, python
        self._token = folder / "token"
        self._token.write_text("0123456789abcdef" * 4)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *settings: str, ranks: int, cluster: Cluster | None = None) -> None:
        place = self.folder / name
        place.mkdir(exist_ok=True)
        words = ["--data", str(self._data), "--out", str(place), "--events", str(place / "events")]
        words += ["--workers", str(ranks), "--device", "cpu", *sets(*PANEL, *settings)]
        words += ["--checkpoints", str(place / "checkpoints")]
        if cluster is not None:
            write_cluster(place / "cluster.json", cluster)
            words += ["--cluster", str(place / "cluster.json")]
        with (place / "log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [*self._python, "-m", "trainer.train", *words],
                env={**os.environ, "RAY_AUTH_TOKEN_PATH": str(self._token), "OMP_NUM_THREADS": "1"},
                stdout=log,
                stderr=log,
            )

    def start_two(self, *settings: str, addresses: tuple[str, str], ranks: int = 2) -> None:
        for node in range(2):
            self.start(
                f"node-{node}", *settings, ranks=ranks, cluster=Cluster(node=node, addresses=addresses)
            )

    def end_of(self, name: str) -> int:
        code = self.processes[name].wait(timeout=300)
        assert code in (0, 100), (self.folder / name / "log").read_text()
        return code

    def events(self, name: str) -> list[dict[str, Any]]:
        with suppress(FileNotFoundError):
            whole = (self.folder / name / "events" / "events.jsonl").read_text().rpartition("\n")[0]
            return [json.loads(line) for line in whole.splitlines()]
        return []

    def wait_for(self, name: str, found: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        while True:
            for event in self.events(name):
                if found(event):
                    return event
            assert self.processes[name].poll() is None, (self.folder / name / "log").read_text()
            time.sleep(0.05)

    def weights(self, name: str) -> dict[str, Any]:
        return load_file(self.folder / name / f"{MODEL}.safetensors")

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()


@pytest.fixture
def nodes(tmp_path: Path, write_candles: Callable[..., Any], python: Sequence[str]) -> Iterator[Nodes]:
    data = tmp_path / "candles"
    data.mkdir()
    for number, symbol in enumerate(("AAA", "BBB", "CCC")):
        write_candles(data, symbol, bars=400, seed=number)
    started = Nodes(tmp_path, data, python)
    yield started
    started.close()


def largest_difference(one: dict[str, Any], other: dict[str, Any]) -> float:
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


@pytest.mark.slow
def test_two_machines_train_one_model_and_the_first_has_it(nodes: Nodes):
    nodes.start_two("train.epochs=1", addresses=("127.0.1.2", "127.0.1.3"), ranks=1)
    assert (nodes.end_of("node-0"), nodes.end_of("node-1")) == (0, 0)
    assert nodes.weights("node-0")
    assert not list((nodes.folder / "node-1").glob("*.safetensors"))
    (ended,) = (event for event in nodes.events("node-1") if event["event"] == "ended")
    assert ended["elsewhere"] == ["mayfly"] and ended["stopped"] == []


@pytest.mark.nightly
def test_two_nodes_of_two_ranks_are_one_of_four(nodes: Nodes):
    nodes.start_two("train.epochs=1", addresses=("127.0.1.8", "127.0.1.9"))
    assert (nodes.end_of("node-0"), nodes.end_of("node-1")) == (0, 0)
    nodes.start("alone", "train.epochs=1", ranks=4)
    assert nodes.end_of("alone") == 0
    assert largest_difference(nodes.weights("alone"), nodes.weights("node-0")) < 1e-9


@pytest.mark.nightly
def test_a_killed_rank_of_another_machine_has_all_start_anew(nodes: Nodes):
    keys = ("train.epochs=100", "train.patience=1000", "train.checkpoint_seconds=1", "train.retries=1")
    nodes.start_two(*keys, addresses=("127.0.1.4", "127.0.1.5"))
    nodes.wait_for("node-0", lambda event: event["event"] == "checkpoint")
    rank = nodes.wait_for("node-1", lambda event: event["event"] == "rank_started")
    os.kill(rank["pid"], signal.SIGKILL)
    assert (nodes.end_of("node-0"), nodes.end_of("node-1")) == (0, 0)
    events = nodes.events("node-0")
    (retry,) = (event for event in events if event["event"] == "retry")
    assert retry["reason"].startswith("node 1: rank ") and retry["reason"].endswith("was killed")
    resumed = [event for event in events if event["event"] == "resumed"]
    assert resumed and resumed[0]["step"] > 0
    nodes.start("alone", *keys, ranks=4)
    assert nodes.end_of("alone") == 0
    assert largest_difference(nodes.weights("alone"), nodes.weights("node-0")) < 1e-9


@pytest.mark.nightly
@pytest.mark.parametrize(("lost", "left"), [(0, 1), (1, 0)])
def test_a_lost_machine_ends_the_training_of_all(nodes: Nodes, lost: int, left: int):
    # More epochs than anybody waits for.
    nodes.start_two("train.epochs=10000", "train.patience=10000", addresses=("127.0.1.6", "127.0.1.7"))
    nodes.wait_for("node-0", lambda event: event["event"] == "epoch")
    nodes.processes[f"node-{lost}"].kill()
    assert nodes.end_of(f"node-{left}") == 100
    log = (nodes.folder / f"node-{left}" / "log").read_text()
    assert "a machine that trains the model with others is lost" in log and f"node {lost}: " in log
    assert "Traceback" not in log.rpartition("a machine that trains")[2]
