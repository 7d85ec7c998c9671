"""Fixtures for tests of training: candles with and without a signal, a small trained model, the command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tests.forks import made_once
from tests.jobs import job_of, sets
from tests.pieces import piece_of
from trainer.job.job import Job
from trainer.job.pieces.piece import Piece
from trainer.train.hardware import hardware_of
from trainer.train.inputs.source import JobData, plan_and_open, read_source
from trainer.train.loop import train as train_pack
from trainer.train.packs.pack import ModelState
from trainer.train.packs.strategy import form_pack
from trainer.train.piece import Opened, close_piece, ended, open_piece, outputs_of_trained
from trainer.train.run import Run

START = np.datetime64("2024-01-01T00:00", "ns")
WriteCandles = Callable[..., Path]
SMALL = ("--device", "cpu", *sets("model.hidden=4", "train.batch=64", "model.lookback=20"))
SECONDS = 500.0  # a hang, not slowness


def _candles(*, bars: int, seed: int, signal: float) -> dict[str, np.ndarray]:
    """Make a seeded random walk in which, with `signal`, the drift follows the volume of bars 20 to
    40 back.
    """
    random = np.random.default_rng(seed)
    loudness = random.standard_normal(bars)
    total = np.concatenate([[0.0], np.cumsum(loudness)])
    bar = np.arange(bars)
    past = total[np.maximum(bar - 19, 0)] - total[np.maximum(bar - 40, 0)]
    log_return = 1e-4 * random.standard_normal(bars) + 4e-4 * signal * np.sign(past)
    close = 100 * np.exp(np.cumsum(log_return))
    open_ = np.concatenate([[100.0], close[:-1]])
    wick = 1 + 1e-5 * random.random((2, bars))
    high, low = np.maximum(open_, close) * wick[0], np.minimum(open_, close) / wick[1]
    timestamp = START + np.arange(bars) * np.timedelta64(1, "m")
    prices = {"open": open_, "high": high, "low": low, "close": close}
    return {"timestamp": timestamp, **prices, "volume": np.exp(loudness)}


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Train on one thread, as workers do: two on busy cores are many times slower, and sums would differ."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def write_candles() -> WriteCandles:
    """Return a function that writes a symbol's minute candles into a folder and returns the file."""

    def write(
        folder: Path, symbol: str, *, bars: int, seed: int = 0, signal: float = 0.0, first: int = 0
    ) -> Path:
        columns = _candles(bars=bars, seed=seed, signal=signal)
        columns["timestamp"] = columns["timestamp"].astype("datetime64[ns]")
        path = folder / f"{symbol}_1m_2024-2024.parquet"
        pq.write_table(pa.table({name: column[first:] for name, column in columns.items()}), path)
        return path

    return write


@dataclass(frozen=True, kw_only=True)
class Trained:
    """One model, as `run_piece` left it."""

    piece: Piece
    job: Job
    data: Path
    out: Path
    done: dict[str, Any]
    events: list[dict[str, Any]]

    @property
    def file(self) -> Path:
        return self.out / str(self.done["file"])


def planned(job: Job, data: Path) -> JobData:
    """Plan a job's data. No file of it holds several symbols, so nothing is split."""
    return plan_and_open(job, data, scratch=data)


class OnePiece:
    """A roster of one piece, which ends up as a file."""

    def __init__(self, piece: Piece, job: Job, data: Path, out: Path) -> None:
        self._piece, self._job, self._data, self._out = piece, job, data, out
        self._opened: Opened | None = None
        self.done: dict[str, Any] = {}

    def arrivals(self, free: int, *, wait: bool, make_room: Callable[[], None]) -> list[Run]:
        if self._opened is not None:
            return []
        source = read_source(self._piece, self._job, planned(self._job, self._data))
        self._opened = open_piece(self._piece, self._job, source)
        return [self._opened.run]

    def checkpoint(self, run: Run, state: ModelState, *, snapshot_seconds: float) -> None:
        """On a slow machine one is due; nothing here goes on from it."""

    def stopped(self, runs: Sequence[Run]) -> None:
        raise AssertionError("no test here has a notice")

    def finished(self, run: Run, model: torch.nn.Module) -> None:
        assert self._opened is not None
        opened = ended(self._opened, self._job)
        outputs = outputs_of_trained(opened, model, self._job)
        self.done = close_piece(
            opened, outputs, self._job, out=self._out, hardware=hardware_of("cpu", "fp32")
        )


@pytest.fixture(scope="session")
def train_piece() -> Callable[..., dict[str, Any]]:
    """Return a function that trains one piece in this process and returns its `model_done` event."""

    def run(piece: Piece, job: Job, data: Path, out: Path) -> dict[str, Any]:
        roster = OnePiece(piece, job, data, out)
        train_pack(roster, lambda members: form_pack(members, job), job, lambda event: None)
        return roster.done

    return run


@pytest.fixture(scope="session")
def train() -> Callable[..., Trained]:
    """Return a function that trains one symbol's model in this process, on one thread as workers do."""

    def run(data: Path, out: Path, symbol: str = "SIG-USD", **settings: Any) -> Trained:
        job = job_of(**settings)
        piece = piece_of(job, symbol)
        events: list[dict[str, Any]] = []
        roster = OnePiece(piece, job, data, out)
        train_pack(roster, lambda members: form_pack(members, job), job, events.append)
        return Trained(piece=piece, job=job, data=data, out=out, done=roster.done, events=events)

    return run


@pytest.fixture(scope="session")
def planted(
    tmp_path_factory: pytest.TempPathFactory, write_candles: WriteCandles, train: Callable[..., Trained]
) -> Trained:
    """Return a small model trained on candles with a signal."""
    settings: dict[str, Any] = {"hidden": 16, "batch": 128, "epochs": 4, "learning_rate": 1e-2, "horizon": 1}

    def make(folder: Path) -> None:
        (folder / "data").mkdir()
        write_candles(folder / "data", "SIG-USD", bars=12000, signal=1.0)
        trained = train(folder / "data", folder / "out", **settings)
        (folder / "events.json").write_text(json.dumps([trained.done, trained.events]))

    folder, job = made_once(tmp_path_factory, "planted", make), job_of(**settings)
    done, events = json.loads((folder / "events.json").read_text())
    piece = piece_of(job, "SIG-USD")
    return Trained(piece=piece, job=job, data=folder / "data", out=folder / "out", done=done, events=events)


class Training:
    """`python -m trainer.train` as the node runs it, and what it says in its events file."""

    def __init__(self, python: Sequence[str], data: Path, folder: Path, *arguments: str) -> None:
        self.out, self.events_file = folder / "out", folder / "events" / "events.jsonl"
        command = [*python, "-m", "trainer.train", "--data", str(data), "--out", str(self.out)]
        command += ["--events", str(folder / "events"), *SMALL, *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def events(self, name: str = "") -> list[dict[str, Any]]:
        if not self.events_file.exists():
            return []
        whole = self.events_file.read_text().splitlines(keepends=True)
        found = [json.loads(line) for line in whole if line.endswith("\n")]
        return [event for event in found if event["event"] == name] if name else found

    def await_event(self, name: str, *, symbol: str = "", count: int = 1) -> dict[str, Any]:
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            found = [event for event in self.events(name) if symbol in ("", event["piece"])]
            if len(found) >= count:
                return found[count - 1]
            assert self.process.poll() is None, self.process.communicate()
            time.sleep(0.02)
        raise AssertionError(f"no {name} of {symbol} within {SECONDS} s: {self.events()}")

    def let_it_save(self, *, symbol: str) -> None:
        """Have the next chunk of a model's training saved: `checkpoint_seconds=1` pass while its worker
        stands still.
        """
        pid = [event["pid"] for event in self.events("model_started") if event["piece"] == symbol][-1]
        saved = len([event for event in self.events("checkpoint") if event["piece"] == symbol])
        os.kill(pid, signal.SIGSTOP)
        time.sleep(1.05)  # the trainer's clock is this machine's, whose speed does not matter here
        os.kill(pid, signal.SIGCONT)
        self.await_event("checkpoint", symbol=symbol, count=saved + 1)

    def end(self) -> int:
        self.process.communicate(timeout=SECONDS)
        return self.process.returncode


@pytest.fixture
def start(tmp_path: Path, python: list[str]) -> Iterator[Callable[..., Training]]:
    """Return a function that starts the command on a folder of candles; what still runs is killed at the end.

    The command is a fork that has torch loaded, or with `anew` a new process, whose workers are its
    descendants.
    """
    started: list[Training] = []

    def begin(data: Path, *arguments: str, name: str = "training", anew: bool = False) -> Training:
        started.append(Training([sys.executable] if anew else python, data, tmp_path / name, *arguments))
        return started[-1]

    yield begin
    for training in started:
        training.process.kill()
        training.process.communicate()
