"""Many models on many workers, workers that die at any moment, and a command that is stopped and resumed."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import subprocess
import threading
from collections import Counter
from math import ceil
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.jobs import job_of, sets
from tests.pieces import piece
from tests.processes import alive, await_stop_of
from trainer.base.silence import DEAF_SECONDS
from trainer.job.job import Job
from trainer.job.pieces.piece import Piece
from trainer.store.card import read_card
from trainer.store.weights import load
from trainer.train.cpu import num_cores
from trainer.train.inputs.source import plan_and_open
from trainer.train.inputs.survey import survey
from trainer.train.workers import supervisor as supervising
from trainer.train.workers.assignment import WorkerSettings
from trainer.train.workers.supervisor import Supervisor

BATCH = 64
TINY = (*sets("model.hidden=2", "model.layers=1", "model.lookback=5"), "--epochs", "1")
EPOCHS = sets("train.epochs=14", "train.patience=14", "train.checkpoint_seconds=1", "train.retries=9")
LONG = ("--workers", "2", *EPOCHS)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, write_candles: Any) -> Path:
    folder = tmp_path_factory.mktemp("candles")
    write_candles(folder, "LONG-USD", bars=6000)
    write_candles(folder, "SHORT-USD", bars=2000, seed=1)
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, data: Path, python: list[str]) -> Path:
    """Return the models of the training that nothing disturbs."""
    out = tmp_path_factory.mktemp("whole") / "out"
    small = sets("model.hidden=4", f"train.batch={BATCH}", "model.lookback=20")  # conftest's
    command = [*python, "-m", "trainer.train", "--data", str(data), "--out", str(out), *small, *LONG]
    command += ["--device", "cpu"]
    command += ["--events", str(out.parent / "events")]
    subprocess.run(command, check=True, capture_output=True)
    return out


def _of(training: Any, name: str, *, symbol: str = "LONG-USD") -> list[dict[str, Any]]:
    return [event for event in training.events(name) if event["piece"] == symbol]


def _same_models(one: Path, other: Path) -> bool:
    files = sorted(path.name for path in one.glob("*.safetensors"))
    assert files == sorted(path.name for path in other.glob("*.safetensors")) and files
    for name in files:
        (weights, card), (others, other_card) = load(one / name), load(other / name)
        assert card.metrics == other_card.metrics
        assert all(np.array_equal(weights[key], others[key]) for key in weights)
    return True


def _steps(training: Any, event: dict[str, Any]) -> int:
    """Return the optimizer steps that a `checkpoint` or `resumed` event is about."""
    if event["event"] == "checkpoint":
        return int(event["folder"].rpartition("/")[2])
    windows = training.events("started")[0]["data"]["symbols"][event["piece"]]["windows"]["train"]
    return int((event["epoch"] - 1) * ceil(windows / BATCH) + ceil(event["visited"] / BATCH))


class Process:
    """A worker that `Workers` plays: no process, and never dead."""

    exitcode = None

    def __init__(self, workers: Workers, station: Any, theirs: Any) -> None:
        self._workers, self._number, self._theirs = workers, station.number, theirs
        self.sentinel, self._end = os.pipe()

    def start(self) -> None:
        # The supervisor closes its copy of the worker's end.
        self._workers.connections[self._number] = Connection(os.dup(self._theirs.fileno()))

    def is_alive(self) -> bool:
        return True

    def kill(self) -> None:
        os.close(self._end)

    def join(self) -> None:
        os.close(self.sentinel)


class Workers:
    """A context whose workers train nothing and are done in an order of chance, as soon as nobody waits for
    work.
    """

    Pipe = staticmethod(multiprocessing.Pipe)

    def __init__(self, num_workers: int, num_pieces: int) -> None:
        self.connections: dict[int, Connection] = {}
        self.given: list[tuple[int, str]] = []  # (worker, symbol), in this order
        self.done: list[tuple[int, str]] = []
        self._num_workers, self._num_pieces = num_workers, num_pieces
        self._chance = random.Random(20)
        self._in_hand: dict[int, Any] = {}

    def Process(self, *, args: tuple[Any, ...], **_: Any) -> Process:  # noqa: N802, multiprocessing's name
        station, _, theirs = args
        return Process(self, station, theirs)

    def play(self) -> None:
        """Finish one model after another until all are done."""
        while len(self.done) < self._num_pieces:
            while len(self.given) < self._num_pieces and len(self._in_hand) < self._num_workers:
                self._hear()
            number = self._chance.choice(sorted(self._in_hand))
            taken = self._in_hand.pop(number)
            self.done.append((number, taken.source))
            self.connections[number].send({"event": "model_done", **taken.identity, "worker": number})

    def _hear(self) -> None:
        # A worker may only come to be meanwhile.
        for connection in wait(list(self.connections.values()), timeout=0.05):
            (number,) = (number for number, known in self.connections.items() if known is connection)
            message = connection.recv()
            if isinstance(message, Piece):
                assert number not in self._in_hand
                self._in_hand[number] = message
                self.given.append((number, message.source))


def test_500_symbols_train_once_and_no_worker_idles(monkeypatch, tmp_path):
    workers = Workers(8, 500)
    monkeypatch.setattr(supervising, "worker_context", lambda kind: workers)
    pieces = [piece(f"C{number:03d}-USD", estimate=420 + number % 100) for number in range(500)]
    settings = WorkerSettings(job=Job(), data=tmp_path, out=tmp_path, checkpoints=tmp_path / "checkpoints")
    player = threading.Thread(target=workers.play, daemon=True)
    player.start()
    with Supervisor(kind="cpu", num_workers=8, settings=settings, emit=lambda event: None) as supervisor:
        outcome = supervisor.run(pieces)
    player.join()
    names = sorted(one.source for one in pieces)
    assert sorted(event["piece"] for event in outcome.done.values()) == names
    assert sorted(symbol for _, symbol in workers.given) == names
    assert not outcome.failed and outcome.retries == 0
    assert {number for number, _ in workers.done} == set(range(8))
    longest = {one.source for one in pieces if one.estimate >= 510}
    assert {symbol for _, symbol in workers.given[:8]} <= longest
    # Nobody starves: a worker's models come one after another, and when the first has no more, each other one
    # finishes what it has in hand and no more.
    order = [number for number, _ in workers.done]
    last = {number: max(place for place, other in enumerate(order) if other == number) for number in range(8)}
    after = Counter(order[min(last.values()) + 1 :])
    assert max(after.values(), default=0) <= 1
    assert min(Counter(order).values()) > 500 // 8 // 4


@pytest.mark.nightly
@pytest.mark.slow
def test_many_symbols_on_real_workers_are_each_trained_once(start, tmp_path, write_candles):
    folder = tmp_path / "many"
    folder.mkdir()
    names = [f"C{number:03d}-USD" for number in range(20)]
    for number, name in enumerate(names):
        write_candles(folder, name, bars=420 + number, seed=number)
    training = start(folder, "--workers", "3", *TINY)
    assert training.end() == 0
    begun, ended = training.events("model_started"), training.events("model_done")
    assert sorted(event["piece"] for event in ended) == sorted(event["piece"] for event in begun) == names
    assert {event["worker"] for event in ended} == set(range(3))


@pytest.mark.nightly
@pytest.mark.slow
def test_killed_workers_resume_from_their_checkpoints(start, data, whole):
    chance = random.Random(20)
    training = start(data, *LONG)
    for kill in range(3):
        training.await_event("epoch", symbol="LONG-USD", count=len(_of(training, "epoch")) + 1)
        if kill:  # the first comes before anything is saved
            training.let_it_save(symbol="LONG-USD")
            later = len(_of(training, "epoch")) + chance.randrange(1, 3)
            training.await_event("epoch", symbol="LONG-USD", count=later)
        started = _of(training, "model_started")
        os.kill(started[-1]["pid"], signal.SIGKILL)
        training.await_event("model_started", symbol="LONG-USD", count=len(started) + 1)
    assert training.end() == 0
    saved: dict[str, int] = {}
    retried: Counter[str] = Counter()
    for event in training.events():
        if event["event"] == "checkpoint":
            saved[event["piece"]] = _steps(training, event)
        elif event["event"] == "retry":
            retried[event["piece"]] += 1
            assert "signal 9" in event["reason"]
        elif event["event"] == "resumed":
            assert _steps(training, event) >= saved[event["piece"]]
    # On a slow machine the first kill may come after a checkpoint, too.
    assert retried == {"LONG-USD": 3} and len(training.events("resumed")) in (2, 3)
    epochs = [event["epoch"] for event in _of(training, "epoch")]
    # What was saved was not trained again.
    assert sorted(set(epochs)) == list(range(1, 15)) and epochs.count(1) <= 2
    assert [event["epoch"] for event in _of(training, "epoch", symbol="SHORT-USD")] == list(range(1, 15))
    assert _same_models(training.out, whole)
    assert not (training.out / "checkpoints").exists()


@pytest.mark.nightly
@pytest.mark.slow
def test_the_events_of_a_training_name_models_and_workers(whole):
    lines = (whole.parent / "events" / "events.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    (started,) = [event for event in events if event["event"] == "started"]
    assert (started["workers"], started["device"], started["data"]["bars"]) == (2, "cpu", 8000)
    assert [model["piece"] for model in started["models"]] == ["LONG-USD", "SHORT-USD"]
    (ended,) = [event for event in events if event["event"] == "ended"]
    assert (ended["done"], ended["failed"], ended["retries"]) == (2, 0, 0)
    done = {event["piece"]: event for event in events if event["event"] == "model_done"}
    assert done.keys() == {"LONG-USD", "SHORT-USD"}
    assert all(read_card(whole / event["file"]).of().symbol == symbol for symbol, event in done.items())
    assert all("time" in event for event in events)


@pytest.mark.nightly
def test_a_stopped_training_resumes_when_started_again(start, data, whole):
    stopped = start(data, *LONG)
    stopped.await_event("model_done", symbol="SHORT-USD")
    stopped.let_it_save(symbol="LONG-USD")
    family = {event["pid"] for event in stopped.events("model_started")}
    stopped.process.terminate()
    assert stopped.end() == 130
    assert not any(map(alive, family))
    assert {path.stem for path in stopped.out.glob("lstm-*")} == {"lstm-direction_SHORT-USD_1m"}
    stopped.events_file.unlink()
    again = start(data, *LONG)
    assert again.end() == 0
    kept = {event["piece"]: event.get("kept", False) for event in again.events("model_done")}
    assert kept == {"SHORT-USD": True, "LONG-USD": False}
    (resumed,) = again.events("resumed")
    assert resumed["piece"] == "LONG-USD"
    assert (resumed["epoch"], resumed["visited"]) > (1, 0)  # in the first epoch, or later
    epochs = [event["epoch"] for event in again.events("epoch")]
    assert epochs == list(range(resumed["epoch"], 15))
    assert not (again.out / "checkpoints").exists()
    assert _same_models(again.out, whole)


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="a worker on every core reads nothing ahead")
@pytest.mark.nightly
@pytest.mark.parametrize("pack", [1, 2])
def test_the_next_symbol_is_read_ahead_with_the_same_model(start, tmp_path, write_candles, pack):
    for number, name in enumerate("ABCD"):
        write_candles(tmp_path, f"{name}-USD", bars=1500 - 200 * number, seed=number)
    settings = ("--workers", "1", "--epochs", "1", "--set", "expert.strategy=sequential")
    ahead = start(tmp_path, *settings, *sets(f"expert.pack={pack}"))
    every_core = ("--workers", str(num_cores()), *settings[2:])
    plain = start(tmp_path, *every_core, name="plain")
    assert (ahead.end(), plain.end()) == (0, 0)
    begun = ahead.events("model_started")
    if pack == 1:
        assert [event["piece"] for event in begun] == ["A-USD", "B-USD", "C-USD", "D-USD"]
        assert [event["staged"] for event in begun] == [False, True, True, True]
    assert sum(event["staged"] for event in begun) >= 1
    assert not any(event["staged"] for event in plain.events("model_started"))
    assert _same_models(ahead.out, plain.out)


@pytest.mark.nightly  # how many threads: test_station.py
@pytest.mark.skipif(num_cores() < 2, reason="needs a second core")
def test_a_single_model_trains_on_all_cores(start, data, tmp_path):
    hidden = ("--epochs", "1", "--symbols", "SHORT-USD")
    hidden += sets("model.hidden=64", "model.layers=1", "train.batch=256")
    alone = start(data, *hidden, name="alone")
    assert alone.end() == 0
    assert alone.events("model_started")[0]["threads"] == num_cores()
    packed = start(data, *hidden, "--set", "expert.pack=2", name="packed")  # a pack of several has one thread
    assert packed.end() == 0
    assert "threads" not in packed.events("model_started")[0]
    (model,) = (path.name for path in alone.out.glob("*.safetensors"))
    (weights, card), (others, other_card) = load(alone.out / model), load(packed.out / model)
    assert (card.training["threads"], other_card.training["threads"]) == (num_cores(), 1)
    for key in weights:
        np.testing.assert_allclose(weights[key], others[key], rtol=1e-3, atol=1e-5)


class WentOn(Exception):
    """All that the test waits for was seen: it ends the training."""


class Stopping:
    """The events of a training whose worker is stopped at its first checkpoint, and its clock, which runs from
    then until the worker counts as silent.
    """

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self._now, self._stopped = 0.0, 0

    def named(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] == kind]

    def emit(self, event: dict[str, Any]) -> None:
        self.events.append(event)
        if event["event"] == "resumed":
            raise WentOn
        if event["event"] == "checkpoint" and not self._stopped:
            self._stopped = event["pid"]
            os.kill(self._stopped, signal.SIGSTOP)
            await_stop_of(self._stopped)  # what it sent before is read first

    def clock(self) -> float:
        self._now += DEAF_SECONDS / 3 if self._stopped and not self.named("worker_silent") else 0.0
        return self._now


@pytest.mark.nightly
@pytest.mark.slow
def test_a_stopped_worker_is_ended_and_its_model_goes_on(
    tmp_path: Path, write_candles: Any, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(supervising, "LOOK_SECONDS", 0.05)
    (tmp_path / "candles").mkdir()
    write_candles(tmp_path / "candles", "A-USD", bars=900)
    small = {"layers": 1, "hidden": 4, "lookback": 20, "batch": 64, "timeframe": "1m"}
    job = job_of(**small, epochs=500, patience=500, checkpoint_seconds=1, retries=1)
    data = plan_and_open(job, tmp_path / "candles", scratch=tmp_path)
    forkserver._forkserver._stop()  # an earlier test's: workers have the standard error of their server
    stopping = Stopping()
    settings = WorkerSettings(job=job, data=data, out=tmp_path / "out", checkpoints=tmp_path / "c")
    known = {"kind": "cpu", "num_workers": 1, "settings": settings, "emit": stopping.emit}
    with Supervisor(**known, clock=stopping.clock) as supervisor, pytest.raises(WentOn):
        supervisor.run(survey(job, data.plan).pieces)
    (silent,) = stopping.named("worker_silent")
    assert "state T (stopped)" in silent["process"]
    (retry,) = stopping.named("retry")
    assert retry["reason"].startswith("its worker made no progress for ")
    assert len({event["pid"] for event in stopping.named("model_started")}) == 2
    (resumed,) = stopping.named("resumed")
    assert (resumed["epoch"], resumed["visited"]) > (1, 0)
    assert "Fatal Python error: Aborted" in capfd.readouterr().err
