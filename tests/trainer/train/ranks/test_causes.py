"""Why a start of several machines ended: the cause, though what follows from it was seen first."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.jobs import job_of
from tests.pieces import piece
from trainer.base.cluster import Cluster
from trainer.base.silence import ProgressClock
from trainer.train.machine_file import MachineFacts
from trainer.train.ranks import process
from trainer.train.ranks.connection import Assignment
from trainer.train.ranks.hanging import HangWatch
from trainer.train.ranks.process import FOLLOWS_SECONDS, Among, TorchRun, Trouble
from trainer.train.workers.assignment import WorkerSettings

LOST = "rank 0: RuntimeError: gloo: connection closed by peer"
KILLED = Trouble(reason="node 1: rank 2 was killed")


def told_of(
    monkeypatch: pytest.MonkeyPatch,
    troubles: Callable[[], list[Trouble]],
    *,
    node: int = 0,
    checkpoints: Path = Path(),
) -> tuple[list[dict[str, Any]], float]:
    """Return the events of a start whose own ranks have all lost a connection, and the seconds it took."""
    clock = [0.0]
    ended = [sys.executable, "-c", "raise SystemExit(1)"]
    real = subprocess.Popen
    monkeypatch.setattr(process.subprocess, "Popen", lambda _, **given: real(ended, stdin=given["stdin"]))

    def passes() -> list[Trouble]:
        clock[0] += 1.0
        return troubles()

    cluster = Cluster(node=node, addresses=("127.0.1.2", "127.0.1.3"))
    machine = MachineFacts(instance_type="c7i.large", gpus=0)
    settings = WorkerSettings(
        job=job_of(),
        data=None,
        out=Path(),
        checkpoints=checkpoints,
        machine=machine,  # type: ignore[arg-type]
    )
    told: list[dict[str, Any]] = []
    run = TorchRun(
        Assignment(piece=piece("P"), settings=settings, kind="cpu"),
        2,
        told.append,
        lambda: clock[0],
        HangWatch(clock=ProgressClock(began=0.0, first=math.inf, least=math.inf)),
        retries=1,
        silences=0,
        gpus=(),
        among=Among(cluster=cluster, session=1, troubles=passes),
    )
    run._ends.append((True, {"reason": LOST}))
    run._torchrun.wait()
    try:
        run.run()
    finally:
        run.close()
    return told, clock[0]


def reason_of(
    monkeypatch: pytest.MonkeyPatch, troubles: Callable[[], list[Trouble]], *, node: int = 0
) -> tuple[str, float]:
    """Return the reason of such a start, and the seconds it took."""
    told, seconds = told_of(monkeypatch, troubles, node=node)
    (retry,) = (event for event in told if event["event"] == "retry")
    return retry["reason"], seconds


def test_a_lost_connection_waits_for_its_cause(monkeypatch):
    said = iter([[], [], [KILLED]])
    assert reason_of(monkeypatch, lambda: next(said, []))[0] == KILLED.reason


def test_a_cause_that_nobody_tells_is_not_waited_for_long(monkeypatch):
    reason, seconds = reason_of(monkeypatch, list)
    assert reason == LOST and seconds <= FOLLOWS_SECONDS + 2


def test_only_the_first_machine_hears_of_causes(monkeypatch):
    assert reason_of(monkeypatch, list, node=1) == (LOST, 1.0)


def test_checkpoints_go_with_a_piece_that_fails_elsewhere(monkeypatch, tmp_path):
    failing, folder = piece("P"), tmp_path / piece("P").name / "000000000001"
    folder.mkdir(parents=True)
    failed = Trouble(reason="it did not train", failed={"reason": "it did not train"})
    told, _ = told_of(monkeypatch, lambda: [failed], checkpoints=tmp_path)
    assert told[-1] == {
        "event": "model_failed",
        **failing.identity,
        "worker": 0,
        "reason": "it did not train",
    }
    assert not folder.exists()
