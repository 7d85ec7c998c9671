"""A worker's roster with helpers: packs start with what is ready, and scoring keeps nobody waiting."""

from __future__ import annotations

import multiprocessing
import threading
import weakref
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from multiprocessing.connection import Connection
from typing import Any

import pytest

from tests.jobs import job_of
from tests.pieces import piece_of
from trainer.base.errors import DataError
from trainer.job.pieces.piece import Piece
from trainer.train.inputs.source import Source, plan_and_open, read_source
from trainer.train.notice import Notice
from trainer.train.packs.pack import new_model
from trainer.train.packs.tensors import tensors_of
from trainer.train.run import Run
from trainer.train.workers import helpers
from trainer.train.workers import worker as working
from trainer.train.workers.assignment import ReadAhead, WorkerSettings
from trainer.train.workers.helpers import do_tasks
from trainer.train.workers.line import Line
from trainer.train.workers.station import Station
from trainer.train.workers.worker import _WorkerRoster

JOB = job_of(target="return", batch=64, lookback=20, hidden=2)
SYMBOLS = ("A-USD", "B-USD", "C-USD")


@pytest.fixture(scope="module")
def settings(tmp_path_factory: Any, write_candles: Any) -> WorkerSettings:
    folder = tmp_path_factory.mktemp("roster")
    for symbol in SYMBOLS:
        write_candles(folder, symbol, bars=900)
    data = plan_and_open(JOB, folder, scratch=folder)
    return WorkerSettings(job=JOB, data=data, out=folder / "out", checkpoints=folder / "checkpoints")


class Worker:
    """A roster with three helpers, which are threads of this process and go on when a test lets them."""

    def __init__(
        self, settings: WorkerSettings, monkeypatch: pytest.MonkeyPatch, *, notice: Notice | None = None
    ) -> None:
        self.may = {symbol: threading.Event() for symbol in (*SYMBOLS, "score")}
        self.read: list[str] = []
        monkeypatch.setattr(helpers, "read", self._read)
        monkeypatch.setattr(helpers, "score", self._score)
        monkeypatch.setattr(Line, "send", lambda line, value: line._connection.send_bytes(_kept(value)))
        monkeypatch.setattr(Line, "receive", lambda line: _KEPT[line._connection.recv_bytes()])
        self.connection, theirs = multiprocessing.Pipe()
        lines = tuple(self._helper(settings) for _ in range(3))
        station = Station(number=0, device="cpu", helpers=lines)
        self.roster = _WorkerRoster(station, settings, theirs, notice or Notice(None))
        self.made_room = 0

    def arrivals(self, free: int, *, wait: bool = False) -> list[str]:
        runs = self.roster.arrivals(free, wait=wait, make_room=self._make_room)
        return [run.title for run in runs]

    def give(self, *symbols: str) -> None:
        for symbol in symbols:
            self.connection.send(piece_of(JOB, symbol))

    def event(self, kind: str) -> dict[str, Any]:
        """Wait for the next event of a kind, and return it."""
        while (event := self.connection.recv())["event"] != kind:
            pass
        return event

    def _make_room(self) -> None:
        self.made_room += 1

    def _helper(self, settings: WorkerSettings) -> Connection:
        ours, theirs = multiprocessing.Pipe()
        threading.Thread(target=do_tasks, args=(settings, Line(theirs)), daemon=True).start()
        return ours

    def _read(self, settings: WorkerSettings, piece: Piece, refit: bool) -> Iterator[Any]:
        self.read.append(piece.source)
        self.may[piece.source].wait()
        source: Source = read_source(piece, settings.job, settings.data)
        yield source
        yield {fold: source.baselines(fold) for fold in source.folds}

    def _score(self, settings: WorkerSettings, opened: Any, *_: Any) -> Iterator[Any]:
        self.may["score"].wait()
        assert not len(opened.data.rows_TF)
        if opened.piece.source == "B-USD":
            raise DataError("B-USD can't be scored", do="Bring more.")
        yield {"event": "model_done", **opened.piece.identity}


def finish(worker: Worker, run: Run) -> None:
    """Tell the roster that a run is over, as the loop does."""
    run.best_weights = tensors_of(new_model(run.member, JOB))
    worker.roster.finished(run, new_model(run.member, JOB))


def stopped(worker: Worker) -> set[str]:
    """Return the pieces that have stopped by what the worker has told until now."""
    pieces = set()
    while worker.connection.poll():
        event = worker.connection.recv()
        pieces |= {event["piece"]} if event["event"] == "model_stopped" else set()
    return pieces


_KEPT: dict[bytes, Any] = {}


def _kept(value: Any) -> bytes:
    """Keep an object for the other end: a test's functions can't be pickled."""
    key = str(len(_KEPT)).encode()
    _KEPT[key] = value
    return key


@pytest.fixture
def worker(settings: WorkerSettings, monkeypatch: pytest.MonkeyPatch) -> Worker:
    return Worker(settings, monkeypatch)


def test_a_pack_starts_with_the_first_model_that_is_ready(worker):
    worker.give("A-USD", "B-USD")
    worker.may["B-USD"].set()
    assert worker.arrivals(2, wait=True) == ["B-USD"], "A is still being read, beside it"
    assert worker.made_room == 1 and worker.arrivals(1) == []
    worker.may["A-USD"].set()
    assert worker.arrivals(1, wait=True) == ["A-USD"]
    assert sorted(worker.read) == ["A-USD", "B-USD"] and worker.made_room == 2


def test_a_large_source_is_read_once_room_is_made(worker, monkeypatch):
    """By the worker: sent by a helper it would be in memory twice."""
    rooms: list[int] = []

    def read(*given: Any, **keys: Any) -> Source:
        rooms.append(worker.made_room)
        return read_source(*given, **keys)

    monkeypatch.setattr(working, "STAGE_GIB", -1.0)
    monkeypatch.setattr(working, "read_source", read)
    worker.give("A-USD")
    assert worker.arrivals(1, wait=True) == ["A-USD"] and rooms == [1] and not worker.read


def test_a_large_source_is_freed_before_its_model_is_scored(settings, monkeypatch, tmp_path):
    worker, alive = Worker(replace(settings, out=tmp_path), monkeypatch), list[bool]()
    scored = working.PieceFiles.scored

    def seen(*given: Any) -> Any:
        alive.append(rows() is not None)
        return scored(*given)

    monkeypatch.setattr(working, "STAGE_GIB", -1.0)
    monkeypatch.setattr(working.PieceFiles, "scored", seen)
    worker.give("A-USD")
    runs = worker.roster.arrivals(1, wait=True, make_room=lambda: None)
    rows = weakref.ref(runs[0].member.rows_TF)
    finish(worker, runs[0])
    assert not alive, "the loop still holds its rows"
    worker.give("B-USD")
    runs = worker.roster.arrivals(1, wait=True, make_room=runs.clear)
    assert alive == [False] and worker.event("model_done")["piece"] == "A-USD"
    finish(worker, runs[0])
    worker.roster.stopped([])  # a notice comes first: it is scored all the same
    assert worker.event("model_done")["piece"] == "B-USD"


def test_what_was_read_ahead_is_not_read_again(worker):
    ahead = [piece_of(JOB, symbol) for symbol in ("A-USD", "B-USD")]
    for event in worker.may.values():
        event.set()
    worker.connection.send(ReadAhead(pieces=tuple(ahead)))
    worker.give("A-USD", "B-USD", "C-USD")
    titles = [title for _ in range(3) for title in worker.arrivals(1, wait=True)]
    assert sorted(titles) == list(SYMBOLS) and sorted(worker.read) == list(SYMBOLS)
    staged = {}
    for _ in range(3):
        begun = worker.event("model_started")
        staged[begun["piece"]] = begun["staged"]
    assert staged == {"A-USD": True, "B-USD": True, "C-USD": False}


def test_models_are_scored_while_others_train(worker):
    for symbol in SYMBOLS:
        worker.may[symbol].set()
    worker.give("A-USD", "B-USD")
    runs = []
    while len(runs) < 2:
        runs += worker.roster.arrivals(2 - len(runs), wait=True, make_room=lambda: None)
    for run in runs:
        finish(worker, run)  # and returns: nothing is scored yet
    worker.give("C-USD")
    assert worker.arrivals(1, wait=True) == ["C-USD"]
    worker.may["score"].set()
    worker.roster.stopped([])  # waits for both
    events: dict[str, dict[str, Any]] = {}
    while len(events) < 2:
        event = worker.connection.recv()
        if event["event"] in ("model_done", "model_failed"):
            events[event["event"]] = event
    assert events["model_done"]["piece"] == "A-USD"
    assert (
        events["model_failed"]["piece"] == "B-USD" and "can't be scored" in events["model_failed"]["reason"]
    )


def test_a_source_that_cannot_be_read_fails_its_piece_alone(worker, monkeypatch):
    def broken(settings: WorkerSettings, piece: Piece, refit: bool) -> Iterator[Any]:
        raise DataError("A-USD has 3 bars", do="Bring more.")
        yield

    monkeypatch.setattr(helpers, "read", broken)
    worker.give("A-USD")
    while not worker.connection.poll():  # no arrival ever comes of it
        assert worker.arrivals(1) == []
    assert worker.event("model_failed")["piece"] == "A-USD" and worker.made_room == 0


def test_an_error_of_a_helper_ends_the_worker(worker, monkeypatch):
    def broken(settings: WorkerSettings, piece: Piece, refit: bool) -> Iterator[Any]:
        yield read_source(piece, settings.job, settings.data)
        raise ZeroDivisionError("of a helper")

    monkeypatch.setattr(helpers, "read", broken)
    worker.give("A-USD")
    (run,) = worker.roster.arrivals(1, wait=True, make_room=lambda: None)
    finish(worker, run)
    with pytest.raises(RuntimeError, match="ZeroDivisionError: of a helper"):
        worker.arrivals(1, wait=True)


def test_a_notice_stops_what_waits_beside_a_training(settings, monkeypatch, tmp_path):
    """Its worker would count as dead otherwise, and a piece without retries as failed."""
    worker = Worker(settings, monkeypatch, notice=Notice(tmp_path / "notice", clock=count().__next__))
    worker.may["A-USD"].set()
    worker.give("A-USD")
    runs = worker.roster.arrivals(1, wait=True, make_room=lambda: None)
    worker.give("B-USD", "C-USD")
    while len(worker.read) < 3:
        assert worker.arrivals(2) == []
    worker.roster.stopped(runs)
    assert stopped(worker) == set(SYMBOLS)


def test_a_notice_stops_what_a_worker_waits_for(settings, monkeypatch, tmp_path):
    """A file that never comes would keep the training from its end."""
    worker = Worker(settings, monkeypatch, notice=Notice(tmp_path / "notice", clock=count().__next__))
    worker.give("A-USD")
    while not worker.read:
        assert worker.arrivals(1) == []
    (tmp_path / "notice").write_text("stop\n")
    waits = threading.Thread(target=worker.arrivals, args=(1,), kwargs={"wait": True}, daemon=True)
    waits.start()
    assert worker.connection.poll(10.0) and stopped(worker) == {"A-USD"}
