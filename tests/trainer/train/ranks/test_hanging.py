"""A rank that hangs is found within a bound: all ranks are asked for their stacks, a silent one is killed, and
all restart.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import pytest

from tests.jobs import job_of
from tests.pieces import piece
from tests.processes import await_end_of, await_stop_of
from trainer.base.silence import ProgressClock
from trainer.train.inputs.source import plan_and_open
from trainer.train.inputs.survey import survey
from trainer.train.ranks import process
from trainer.train.ranks.connection import Assignment
from trainer.train.ranks.hanging import HangWatch, Silence, dump
from trainer.train.ranks.process import TorchRun
from trainer.train.ranks.supervisor import RankSupervisor
from trainer.train.workers.assignment import WorkerSettings


def watch_of(began: float) -> HangWatch:
    return HangWatch(clock=ProgressClock(began=began, first=60.0, least=60.0))


def test_a_silent_rank_is_asked_once_then_counts_as_hung():
    watch = watch_of(100.0)
    assert watch.check([0, 1], 129.0) == Silence()
    assert watch.check([0, 1], 130.0) == Silence(ask=True)
    watch.note_answer(0)
    assert watch.check([0, 1], 159.0) == Silence()
    assert watch.check([0, 1], 160.0) == Silence(hung=(1,))


def test_ranks_that_answer_and_do_nothing_count_as_hung():
    watch = watch_of(0.0)
    assert watch.check([0, 1], 30.0).ask
    watch.note_answer(0)
    watch.note_answer(1)
    assert watch.check([0, 1], 60.0) == Silence(hung=(0, 1), answered=True)
    assert watch.check([0, 1], 61.0) == Silence(), "the new ranks have all the time again"
    assert watch.check([], 1e9) == Silence()  # none has begun yet


def test_a_sign_ends_the_silence():
    watch = watch_of(0.0)
    assert watch.check([0, 1], 30.0).ask
    watch.note_sign(2.0)
    assert watch.check([0, 1], 31.0) == Silence()
    assert watch.check([0, 1], 32.0).ask and watch.check([0, 1], 61.0) == Silence()
    assert watch.check([0, 1], 62.0).hung == (0, 1)


@pytest.mark.slow
def test_a_dump_has_each_backends_collectives_or_the_reason(monkeypatch, capfd):
    from torch._C import _distributed_c10d

    def recorded(*, includeCollectives: bool, onlyActive: bool) -> bytes:
        assert includeCollectives and onlyActive
        return b'{"entries": [7]}'

    def broken(**_: bool) -> bytes:
        raise RuntimeError("no buffer")

    monkeypatch.setattr(_distributed_c10d, "_dump_nccl_trace_json", recorded, raising=False)
    monkeypatch.setattr(_distributed_c10d, "_dump_fr_trace_json", broken)
    ended = threading.Event()
    others = [threading.Thread(target=ended.wait) for _ in range(120)]  # more than faulthandler shows
    for other in others:
        other.start()
    dump(3)
    ended.set()
    for other in others:
        other.join()
    said = capfd.readouterr().err
    assert "rank 3 was asked for its stacks" in said and "test_hanging.py" in said
    assert 'rank 3, unfinished nccl collectives: {"entries": [7]}' in said
    assert "rank 3, unfinished gloo collectives: not readable (RuntimeError: no buffer)" in said


BOUND = 8.0  # seconds of the clock below


class WentOn(Exception):
    """All that the test waits for was seen: it ends the training."""


class Hanging:
    """The events of a training whose rank 1 is stopped at the first checkpoint, and its clock, which nobody
    has to wait for.
    """

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self._now, self._stopped, self._resumed = 0.0, 0, False

    def named(self, *names: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] in names]

    def emit(self, event: dict[str, Any]) -> None:
        self.events.append(event)
        if event["event"] == "checkpoint" and not self._stopped:
            (self._stopped,) = (one["pid"] for one in self.named("rank_started") if one["worker"] == 1)
            os.kill(self._stopped, signal.SIGSTOP)
            await_stop_of(self._stopped)  # a thread of it could answer until then
        assert len(self.named("ranks_silent")) < 20, "nobody ends the rank that hangs"
        self._resumed = self._resumed or event["event"] == "resumed"
        if self._resumed and event["event"] == "checkpoint":
            raise WentOn

    def clock(self) -> float:
        """Return a time that runs from the stop until the rank is told to end, and has its stacks to write; it
        stands while ranks that were asked may answer.
        """
        told = self.named("worker_silent")
        waiting = self._stopped and not told and self.events[-1]["event"] != "ranks_silent"
        self._now += BOUND / 2 if waiting else 0.0
        return self._now


def test_ranks_stopped_with_their_watcher_are_not_silent(monkeypatch: pytest.MonkeyPatch):
    now, told = [0.0], list[dict[str, Any]]()
    real, sleeps = subprocess.Popen, [sys.executable, "-c", "input()"]
    monkeypatch.setattr(process.subprocess, "Popen", lambda _, **given: real(sleeps, stdin=given["stdin"]))
    settings = WorkerSettings(job=job_of(), data=None, out=Path(), checkpoints=Path())  # type: ignore[arg-type]
    run = TorchRun(
        Assignment(piece=piece("P"), settings=settings, kind="cpu"),
        1,
        told.append,
        lambda: now[0],
        watch_of(0.0),
        retries=1,
        silences=0,
        gpus=(),
    )
    ours, theirs = Pipe()
    run._ranks[ours] = process._Rank(number=0, pid=0, connection=ours)

    def stopped(*given: Any, **how: Any) -> list[Any]:
        if now[0]:
            raise WentOn
        now[0] += 3600.0
        return []

    monkeypatch.setattr(process, "wait", stopped)
    try:
        with pytest.raises(WentOn):
            run.run()
    finally:
        run._ranks.clear()
        theirs.close()
        run.close()
    assert [event["event"] for event in told] == ["torchrun_started"]


@pytest.mark.nightly
@pytest.mark.slow
def test_a_stopped_rank_is_killed_and_all_ranks_go_on(
    tmp_path: Path, write_candles: Any, capfd: pytest.CaptureFixture[str], forked_children: None
):
    (tmp_path / "candles").mkdir()
    write_candles(tmp_path / "candles", "A-USD", bars=900)
    small = {"layers": 1, "hidden": 4, "lookback": 20, "batch": 64, "timeframe": "1m"}
    endless = {"epochs": 500, "patience": 500, "checkpoint_seconds": 1}
    job = job_of(**small, **endless, distributed="always", retries=0)  # once after a silence, all the same
    data = plan_and_open(job, tmp_path / "candles", scratch=tmp_path)
    hanging = Hanging()
    settings = WorkerSettings(job=job, data=data, out=tmp_path / "out", checkpoints=tmp_path / "c")
    # By FSDP2, from the source to a checkpoint.
    known = {"kind": "cpu", "ranks": 2, "settings": settings, "sharded": True, "first": BOUND, "least": BOUND}
    with RankSupervisor(**known, emit=hanging.emit, clock=hanging.clock) as supervisor, pytest.raises(WentOn):
        supervisor.run(survey(job, data.plan).pieces)
    (retry,) = hanging.named("retry")
    assert retry["reason"] == "rank 1 hung: it did not answer within 8 s"
    assert {event["worker"] for event in hanging.named("rank_dumped")} == {0}
    told = [event["event"] for event in hanging.named("ranks_silent", "worker_silent", "retry")]
    assert told == ["ranks_silent", "worker_silent", "retry"]  # nobody is asked again while one is ended
    (silent,) = hanging.named("ranks_silent")
    assert silent["seconds"] == BOUND / 2
    started = hanging.named("rank_started")
    assert sorted(event["worker"] for event in started) == [0, 0, 1, 1]
    assert len({event["pid"] for event in started}) == 4
    (resumed,) = hanging.named("resumed")
    assert (resumed["epoch"], resumed["visited"]) > (1, 0)
    await_end_of({event["pid"] for event in started})
    (ended,) = hanging.named("worker_silent")
    assert ended["worker"] == 1 and "state T (stopped)" in ended["process"]
    log = capfd.readouterr().err
    assert "Fatal Python error: Aborted" in log, "the stopped rank wrote its stacks, too"
    assert "rank 0 was asked for its stacks" in log and "trainer/train/loop.py" in log
    _, _, collectives = log.partition("rank 0, unfinished gloo collectives: ")
    assert json.JSONDecoder().raw_decode(collectives)[0]["entries"], "the one in which it waits for rank 1"
