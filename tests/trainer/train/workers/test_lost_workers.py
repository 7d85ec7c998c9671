"""Workers without progress, devices that kill their workers, and devices without enough memory: what is tried
again, where, and what is charged. The workers are played, and the clock is the tests'.
"""

from __future__ import annotations

import errno
import multiprocessing
import os
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.jobs import job_of
from tests.pieces import piece
from trainer.job.pieces.piece import Piece
from trainer.node.progress import Progress, advance
from trainer.train import smoke
from trainer.train.workers import supervisor as supervising
from trainer.train.workers.assignment import Outcome, WorkerSettings
from trainer.train.workers.helpers import help_worker
from trainer.train.workers.smaller import smaller, smallest
from trainer.train.workers.supervisor import Supervisor
from trainer.train.workers.worker import crash_of

NO_MEMORY = crash_of(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"))
CHOICE = {
    "profile": "l4",
    "strategy": "sequential",
    "activation_checkpointing": False,
    "batch": 256,
    "torch": "2.13.0",
    "from": {"pack": "default"},
}


class Played:
    """A worker's process and its end of the pipe: `behave` decides what each piece that it is sent does to
    it.
    """

    pid = 0  # of no process

    def __init__(self, behave: Callable[[Played, Piece], None], station: Any, settings: Any, theirs: Any):
        self.number, self.device, self.job = station.number, station.device, settings.job
        self.pieces: list[Piece] = []
        self.exitcode: int | None = None
        self.sentinel, self._end = os.pipe()
        self._behave, self._theirs = behave, theirs
        self._line: Connection | None = None

    def start(self) -> None:
        self._line = Connection(os.dup(self._theirs.fileno()))  # the supervisor closes its copy

    def take(self, piece: Any) -> None:
        if isinstance(piece, Piece):
            self.pieces.append(piece)
            self._behave(self, piece)

    def tell(self, event: dict[str, Any]) -> None:
        assert self._line is not None
        self._line.send({**event, "worker": self.number})

    def finish(self) -> None:
        for done in self.pieces:
            self.tell({"event": "model_done", **done.identity})
        self.pieces.clear()

    def die(self, code: int) -> None:
        if self.exitcode is None and self._line is not None:
            self.exitcode = code
            self._line.close()
            os.close(self._end)

    def is_alive(self) -> bool:
        return self.exitcode is None

    def kill(self) -> None:
        self.die(-9)

    def join(self) -> None:
        os.close(self.sentinel)


class Ours(Connection):
    """The supervisor's end of the pipe."""

    worker: Played

    def send(self, obj: Any) -> None:
        self.worker.take(obj)


class Helper:
    """A helper's process, which does nothing."""

    alive = False

    def start(self) -> None:
        self.alive = True

    def kill(self) -> None:
        self.alive = False

    def join(self) -> None:
        assert not self.alive


class Context:
    """A multiprocessing context whose processes are played."""

    def __init__(self, behave: Callable[[Played, Piece], None]) -> None:
        self._behave = behave
        self.started: list[Played] = []
        self.helpers: list[Helper] = []

    def Pipe(self) -> tuple[Ours, Any]:  # noqa: N802, multiprocessing's name
        ours, theirs = multiprocessing.Pipe()
        self._ours = Ours(os.dup(ours.fileno()))
        ours.close()
        return self._ours, theirs

    def Process(self, *, target: Any, args: tuple[Any, ...], **_: Any) -> Any:  # noqa: N802
        if target is help_worker:
            self.helpers.append(Helper())
            return self.helpers[-1]
        self._ours.worker = Played(self._behave, *args)
        self.started.append(self._ours.worker)
        return self._ours.worker


class Stage:
    """A training by played workers, on devices of no kind that exists."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.events: list[dict[str, Any]] = []
        self.now = 0.0
        self.tried: list[str] = []
        self.heard: Callable[[dict[str, Any]], None] = lambda event: None
        self._patch, self._folder = monkeypatch, folder

    def emit(self, event: dict[str, Any]) -> None:
        self.events.append(event)
        self.heard(event)

    def named(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] == kind]

    def clock(self) -> float:
        return self.now

    def train(
        self,
        behave: Callable[[Played, Piece], None],
        pieces: Sequence[Piece],
        *,
        workers: int = 1,
        broken: Sequence[str] = (),
        helpers: int = 0,
        **keys: Any,
    ) -> Outcome:
        self.context = Context(behave)
        self._patch.setattr(supervising, "helpers_of", lambda **_: helpers)
        self._patch.setattr(supervising, "worker_context", lambda kind: self.context)
        self._patch.setattr(supervising, "device_of", lambda kind, number: f"stub:{number}")
        self._patch.setattr(supervising, "default_workers", lambda kind: workers)
        self._patch.setattr(supervising, "LOOK_SECONDS", 0.01)
        job = job_of(**{"pack": 1, "strategy": "sequential", "batch": 256, "micro_batch": 256, **keys})
        folders = {"out": self._folder, "checkpoints": self._folder / "checkpoints"}
        choice = {**CHOICE, "pack": job.expert.pack, "micro_batch": 256}
        settings = WorkerSettings(job=job, data=self._folder, **folders, choice=choice)  # type: ignore[arg-type]

        def tried(device: str) -> str:
            self.tried.append(device)
            return "its smoke test fails: Xid 79" if device in broken else ""

        known = {"kind": "cuda", "num_workers": workers, "settings": settings, "emit": self.emit}
        with Supervisor(**known, clock=self.clock, smoke=tried) as supervisor:
            return supervisor.run(pieces)


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Stage:
    return Stage(monkeypatch, tmp_path)


def some(count: int) -> list[Piece]:
    return [piece(f"C{number:02d}-USD") for number in range(count)]


def reasons(outcome: Outcome) -> set[str]:
    return {event["reason"] for event in outcome.failed.values()}


# --- helpers


def test_a_place_is_free_while_a_helper_scores(stage):
    def behave(worker: Played, got: Piece) -> None:
        worker.tell({"event": "scoring", "aside": True, **got.identity})
        if len(worker.pieces) == 3:
            worker.finish()

    outcome = stage.train(behave, some(3), helpers=2)
    assert len(outcome.done) == 3 and not outcome.failed
    assert len(stage.context.started) == 1, "all three were in one worker's hand, which trains one at a time"
    assert len(stage.context.helpers) == 2 and not any(one.alive for one in stage.context.helpers)


def test_a_dead_workers_helpers_die_and_its_models_are_rescored(stage):
    def behave(worker: Played, got: Piece) -> None:
        worker.tell({"event": "scoring", "aside": True, **got.identity})
        if len(stage.context.started) == 2:
            worker.finish()
        elif len(worker.pieces) == 2:
            worker.die(1)

    outcome = stage.train(behave, some(2), helpers=1)
    assert len(outcome.done) == 2 and outcome.retries == 2
    assert [one.alive for one in stage.context.helpers] == [False, False]


def test_no_model_begins_once_a_worker_has_heard_a_notice(stage):
    """Before the supervisor looks at it itself: the worker would end with a model that it had not heard of."""

    def behave(worker: Played, got: Piece) -> None:
        worker.tell({"event": "model_stopped", **got.identity})

    outcome = stage.train(behave, some(3))
    assert len(outcome.stopped) == 1 and not outcome.failed and not stage.named("retry")


@pytest.mark.parametrize(("retries", "starts"), [(0, 1), (1, 4)])
def test_models_without_retries_get_none_for_their_neighbours(stage, retries, starts):
    outcome = stage.train(lambda worker, _: worker.die(1), some(2), pack=2, retries=retries)
    assert len(outcome.failed) == 2 and len(stage.context.started) == starts


# --- silence


@pytest.mark.parametrize("retries", [0, 9])
def test_a_worker_without_progress_is_restarted_once(stage, retries):
    def behave(worker: Played, _: Piece) -> None:
        if len(stage.context.started) == 1:
            stage.now += 901  # it says nothing
        else:
            worker.finish()

    outcome = stage.train(behave, some(1), retries=retries)
    assert len(outcome.done) == 1 and outcome.retries == 1
    (silent,) = stage.named("worker_silent")
    assert (silent["worker"], silent["seconds"], silent["pieces"]) == (0, 901.0, ["C00-USD"])
    assert stage.named("retry")[0]["reason"] == "its worker made no progress for 901 s"


@pytest.mark.parametrize("retries", [0, 9])
def test_a_piece_that_is_silent_twice_has_failed(stage, retries):
    def behave(worker: Played, _: Piece) -> None:
        stage.now += 901

    outcome = stage.train(behave, some(1), retries=retries)
    assert reasons(outcome) == {"its worker made no progress for 901 s"}
    assert len(stage.context.started) == 2


def test_signs_between_events_keep_a_worker_alive(stage):
    def behave(worker: Played, _: Piece) -> None:
        worker.tell({"event": "moved", "of": "score"})

    def heard(event: dict[str, Any]) -> None:
        stage.now += 800
        (worker,) = stage.context.started
        if len(stage.named("moved")) < 5:
            worker.tell({"event": "moved", "of": "score"})
        elif event["event"] == "moved":
            worker.finish()

    stage.heard = heard
    outcome = stage.train(behave, some(1))
    assert len(outcome.done) == 1 and not stage.named("worker_silent") and len(stage.named("moved")) == 5


def test_a_worker_that_waits_for_work_is_not_silent(stage):
    order: list[int] = []

    def behave(worker: Played, _: Piece) -> None:
        order.append(worker.number)
        stage.now += 600  # while the other waits
        worker.finish()

    outcome = stage.train(behave, some(6), workers=2)
    assert len(outcome.done) == 6 and not stage.named("worker_silent")


def test_a_training_that_was_stopped_ends_no_worker(stage, monkeypatch):
    """As by Ctrl-Z: its workers were stopped with it."""
    wait = supervising.wait

    def stopped(*given: Any, **how: Any) -> Any:
        if stage.now:
            stage.context.started[0].finish()
        stage.now += 3600
        return wait(*given, **how)

    monkeypatch.setattr(supervising, "wait", stopped)
    outcome = stage.train(lambda worker, _: None, some(1))
    assert len(outcome.done) == 1 and not stage.named("worker_silent")


def test_workers_are_not_silent_while_devices_are_tried(stage):
    """Nobody reads what they say then."""

    def behave(worker: Played, _: Piece) -> None:
        if worker.device == "stub:1":
            worker.die(-6)
        elif worker.number:  # the first one trains on
            worker.finish()

    def heard(event: dict[str, Any]) -> None:
        if event["event"] == "device_set_aside":
            stage.now += 1000
        elif len(stage.named("model_done")) == 4:
            stage.context.started[0].finish()

    stage.heard = heard
    outcome = stage.train(behave, some(5), workers=3, broken=["stub:1"])
    assert len(outcome.done) == 5 and not stage.named("worker_silent")


# --- broken devices


def dies_on(device: str) -> Callable[[Played, Piece], None]:
    def behave(worker: Played, _: Piece) -> None:
        if worker.device == device:
            worker.die(-6)
        else:
            worker.finish()

    return behave


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_a_device_that_dies_on_every_piece_is_set_aside(stage, retries):
    outcome = stage.train(dies_on("stub:1"), some(40), workers=2, broken=["stub:1"], retries=retries)
    assert len(outcome.done) == 40 and not outcome.failed
    assert stage.tried == ["stub:1"]
    (aside,) = stage.named("device_set_aside")
    assert (aside["device"], aside["reason"]) == ("stub:1", "its smoke test fails: Xid 79")
    assert sum(worker.device == "stub:1" for worker in stage.context.started) <= 2
    uncharged = [event for event in stage.named("retry") if event.get("charged") is False]
    assert uncharged and "stub:1 is set aside" in uncharged[0]["reason"]
    assert outcome.retries == len(stage.named("retry")) - len(uncharged)


def test_no_device_left_ends_the_training_at_once(stage):
    def behave(worker: Played, _: Piece) -> None:
        worker.die(-6)

    outcome = stage.train(behave, some(30), workers=2, broken=["stub:0", "stub:1"], retries=2)
    assert len(outcome.failed) == 30 and not outcome.done
    (reason,) = reasons(outcome)
    assert reason.startswith("no device is left: stub:") and reason.count("Xid 79") == 2
    assert len(stage.context.started) <= 4 and stage.tried.count("stub:0") == 1


def test_a_sound_device_stays_and_its_pieces_are_charged(stage):
    def behave(worker: Played, taken: Piece) -> None:
        worker.die(1) if taken.source == "C01-USD" else worker.finish()

    outcome = stage.train(behave, some(3), retries=1)
    assert {event["piece"] for event in outcome.failed.values()} == {"C01-USD"}
    assert (len(outcome.done), outcome.retries) == (2, 1)
    assert stage.tried and not stage.named("device_set_aside")


def test_a_set_aside_device_is_in_the_nodes_progress():
    told = {"event": "device_set_aside", "device": "cuda:3", "reason": "Xid 79", "worker": 3, "pieces": []}
    progress = advance(Progress(), told)
    assert (progress.out_of_service, progress.message) == (("cuda:3: Xid 79",), "set aside cuda:3: Xid 79")


@pytest.mark.nightly
def test_a_device_is_tried_in_a_process_of_its_own(monkeypatch):
    assert smoke.tried("no-such-device").startswith("its smoke test fails: ")
    monkeypatch.setattr(smoke.sys, "executable", "/bin/true")
    assert smoke.tried("cpu") == ""


def test_a_full_device_is_not_a_broken_one(monkeypatch, tmp_path):
    full = tmp_path / "full"
    full.write_text('#!/bin/sh\necho \'{"error": "OutOfMemoryError: CUDA out of memory"}\'; exit 100\n')
    full.chmod(0o755)
    monkeypatch.setattr(smoke.sys, "executable", str(full))
    assert smoke.tried("cuda:0") == ""


# --- memory


def allocator(room: int) -> Callable[[Played, Piece], None]:
    """Return the behaviour of workers that can hold so many windows, of all their models together."""

    def behave(worker: Played, _: Piece) -> None:
        pack, windows = worker.job.expert.pack, worker.job.expert.micro_batch or worker.job.train.batch
        if len(worker.pieces) < pack:
            return
        if pack * windows > room:
            worker.tell(NO_MEMORY)
            worker.die(1)
        else:
            worker.finish()

    return behave


@pytest.mark.parametrize(
    ("room", "pack", "micro_batch"),
    [(1024, 4, 256), (512, 2, 256), (256, 1, 256), (255, 1, 128), (64, 1, 64)],
)
def test_out_of_memory_halves_the_pack_then_the_slices(stage, room, pack, micro_batch):
    outcome = stage.train(allocator(room), some(4), pack=4, retries=0)
    assert len(outcome.done) == 4 and not outcome.failed and outcome.retries == 0
    last = stage.context.started[-1].job.expert
    assert (last.pack, last.micro_batch) == (pack, micro_batch)
    assert not stage.tried, "the device is not at fault"
    if room < 1024:
        lowered = stage.named("out_of_memory")
        assert [event["pack"] for event in lowered][:2] == [2, 1][: len(lowered)]
        assert (lowered[-1]["pack"], lowered[-1]["micro_batch"]) == (pack, micro_batch)
        known = Progress()
        for event in stage.events:
            known = advance(known, event)
        assert known.retries == 0


def test_a_model_that_fits_in_no_slice_has_failed(stage):
    outcome = stage.train(allocator(0), some(2), pack=2, retries=3)
    assert len(outcome.failed) == 2 and outcome.retries == 0
    (reason,) = reasons(outcome)
    assert reason.startswith("out of memory, alone and in slices of 1: OutOfMemoryError: CUDA out of memory")


def test_ranks_take_less_memory_from_their_batch_share_on():
    job = job_of(batch=256)
    (less,) = [smaller(job, ranks=4)]
    assert less is not None and (less.expert.pack, less.expert.micro_batch) == (1, 32)
    assert smaller(job_of(batch=256, micro_batch=1)) is None


@pytest.mark.parametrize(
    ("less", "now", "expected"),  # pack and slice: of a worker that ran out just now, and of newer ones
    [((1, 32), (2, 64), (1, 32)), ((2, 128), (1, 64), (1, 64)), ((1, 32), (1, 0), (1, 32))],
)
def test_memory_that_was_given_up_stays_given_up(less, now, expected):
    jobs = [job_of(pack=pack, micro_batch=windows) for pack, windows in (less, now)]
    lowered = smallest(*jobs).expert
    assert (lowered.pack, lowered.micro_batch) == expected


def test_only_a_lack_of_memory_is_told_as_one():
    assert NO_MEMORY["out_of_memory"] is True
    assert crash_of(RuntimeError("device-side assert"))["out_of_memory"] is False


def test_a_full_disk_is_told_as_one():
    error = OSError(errno.ENOSPC, "No space left on device", "out/a.json")
    assert crash_of(error)["reason"] == "cannot write out/a.json (No space left on device). Free some space."
