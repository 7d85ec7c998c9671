"""Three trainings, each with loopback address, processes and folders of its own, share 20 models through Ray."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.jobs import sets
from tests.processes import descendants
from tests.trainer.cluster.conftest import OfNode
from trainer.data.synthetic import main as write_candles

pytest.importorskip("ray", reason="the extra `cluster` is not installed")
pytestmark = pytest.mark.nightly
SYMBOLS = [f"S{number:02d}-USD" for number in range(20)]
TINY = sets("model.hidden=4", "model.lookback=20", "train.batch=64", "train.epochs=16", "train.patience=16")
SECONDS = 240.0


class NodeTraining:
    """The training of one node."""

    def __init__(self, folder: Path, data: Path, cluster: Path, variables: dict[str, str]) -> None:
        self.folder = folder
        folder.mkdir()
        words = [sys.executable, "-m", "trainer.train", "--data", str(data), "--out", str(folder / "out")]
        words += ["--events", str(folder / "events"), "--cluster", str(cluster), "--device", "cpu"]
        with (folder / "log").open("w") as log:
            self.process = subprocess.Popen(
                [*words, "--workers", "1", *TINY],
                env={**os.environ, **variables},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def events(self, name: str) -> list[dict[str, Any]]:
        file = self.folder / "events" / "events.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        return [event for line in lines if (event := json.loads(line))["event"] == name]

    def await_models(self, count: int) -> None:
        deadline = time.monotonic() + SECONDS
        while len(self.events("model_done")) < count:
            assert self.process.poll() is None and time.monotonic() < deadline, (
                self.folder / "log"
            ).read_text()
            time.sleep(0.1)

    def kill(self) -> None:
        """Kill it with all of its processes, Ray's too, as if the machine were gone."""
        for pid in [self.process.pid, *descendants(self.process.pid)]:
            os.kill(pid, signal.SIGKILL)

    def end(self) -> int:
        return self.process.wait(SECONDS)

    @property
    def done(self) -> list[str]:
        return [event["piece"] for event in self.events("model_done")]


@pytest.fixture
def nodes(tmp_path: Path, of_node: OfNode) -> Iterator[Callable[[], list[NodeTraining]]]:
    started: list[NodeTraining] = []

    def start() -> list[NodeTraining]:
        data = tmp_path / "data"
        write_candles(["--out", str(data), "--symbols", ",".join(SYMBOLS), "--bars", "2000"])
        for number in range(3):
            started.append(NodeTraining(tmp_path / str(number), data, *of_node(number)))
        return started

    yield start
    for node in started:
        if node.process.poll() is None:
            node.kill()
            node.process.wait()


def test_models_of_a_killed_node_are_trained_by_the_others(nodes):
    head, other, victim = nodes()
    victim.await_models(1)
    victim.kill()
    assert (head.end(), other.end(), victim.end()) == (0, 0, -signal.SIGKILL)
    assert Counter([*head.done, *other.done]) == Counter(SYMBOLS)
    assert [event["node"] for event in head.events("node_lost")] == [2]
    taken = [event["piece"] for node in (head, other) for event in node.events("taken_over")]
    assert set(taken) >= set(victim.done) and {*taken} <= {*SYMBOLS}
    for node in (head, other):
        (ended,) = node.events("ended")
        assert sorted([*ended["elsewhere"], *node.done]) == SYMBOLS


def test_models_of_a_node_whose_training_dies_go_to_the_others(nodes):
    head, other, victim = nodes()
    victim.await_models(1)
    victim.process.kill()  # its member notices, and leaves
    assert (head.end(), other.end()) == (0, 0)
    assert Counter([*head.done, *other.done, *victim.done]) == Counter(SYMBOLS)
    assert head.events("node_lost") == []


def test_every_node_ends_when_the_head_is_lost(nodes):
    head, other, last = nodes()
    other.await_models(1)
    head.kill()
    began = time.monotonic()
    assert (other.end(), last.end()) == (100, 100)
    assert time.monotonic() - began < 60
    (error,) = other.events("error")
    assert "the queue" in error["what"] and error["what"].endswith("is lost")
