"""A training whose ranks or supervisor die resumes, reports why, and leaves no process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.jobs import job_of, sets
from tests.pieces import piece
from tests.processes import await_end_of
from trainer.base.errors import UsageError
from trainer.store.weights import load
from trainer.train.inputs.source import plan_and_open
from trainer.train.inputs.survey import survey
from trainer.train.ranks.connection import follows_another
from trainer.train.ranks.supervisor import RankSupervisor, check_ranks
from trainer.train.workers.assignment import WorkerSettings

TOGETHER = ("--workers", "2", *sets("train.distributed=always", "data.pooled=true", "model.layers=1"))
LONG = sets("train.epochs=500", "train.patience=500", "train.checkpoint_seconds=1")
SECONDS = 500.0  # a hang, not slowness


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, write_candles: Any) -> Path:
    folder = tmp_path_factory.mktemp("candles")
    write_candles(folder, "A-USD", bars=900)
    write_candles(folder, "B-USD", bars=800, seed=1)
    return folder


def listening(pid: int) -> list[str]:
    """Return the addresses of a process's listening sockets, as the kernel writes them."""
    own = {str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()}
    lines = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
    ]
    return [line[1].split(":")[0] for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in own]


def pids_of(training: Any, *, count: int) -> set[int]:
    """Return the process ids of the ranks, of which every one has begun `count` times."""
    training.await_event("rank_started", count=2 * count)
    return {event["pid"] for event in training.events("rank_started")}


@pytest.mark.slow
def test_a_killed_rank_is_retried_and_no_rank_is_left_behind(start, data):
    training = start(data, *TOGETHER, *LONG)
    first = pids_of(training, count=1)
    training.await_event("checkpoint")
    if sys.platform == "linux":
        assert {address for pid in first for address in listening(pid)} == {"0100007F"}  # 127.0.0.1
    os.kill(max(first), signal.SIGKILL)
    retry = training.await_event("retry")
    assert retry["reason"].startswith("rank ") and retry["reason"].endswith("was killed")
    both = pids_of(training, count=2)
    resumed = training.await_event("resumed")
    assert (resumed["epoch"], resumed["visited"]) > (1, 0)
    training.await_event("checkpoint", count=len(training.events("checkpoint")) + 1)
    assert len(both) == 4
    os.kill(training.events("torchrun_started")[0]["pid"], signal.SIGKILL)
    await_end_of(both)
    training.process.communicate(timeout=SECONDS)


@pytest.mark.nightly
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_torchrun_is_retried_from_the_checkpoint(number, start, data):
    training = start(data, *TOGETHER, *LONG)
    first = pids_of(training, count=1)
    training.await_event("checkpoint")
    os.kill(training.events("torchrun_started")[0]["torchrun"], number)
    reason = training.await_event("retry")["reason"]
    assert reason.endswith("was killed by signal 9" if number == signal.SIGKILL else "was killed")
    resumed = training.await_event("resumed")
    assert (resumed["epoch"], resumed["visited"]) > (1, 0)
    await_end_of(first)
    os.kill(training.await_event("torchrun_started", count=2)["torchrun"], signal.SIGKILL)
    assert training.end() == 100 and len(training.events("retry")) == 1  # `retries` is 1
    assert training.events("model_failed")[0]["reason"] == "torchrun was killed by signal 9"


@pytest.mark.nightly
@pytest.mark.slow
def test_ranks_write_one_model_and_a_second_start_keeps_it(start, data, tmp_path):
    short = (*TOGETHER, "--epochs", "1")
    left = tmp_path / "training" / "out" / "checkpoints" / "lstm-direction_mayfly_1m" / "000000000001"
    left.mkdir(parents=True)
    training = start(data, *short)
    assert training.end() == 0
    (done,) = training.events("model_done")
    _, card = load(training.out / done["file"])
    assert (done["worker"], card.piece, len(card.series)) == (0, "mayfly", 2)
    assert not (training.out / "checkpoints").exists()
    again = start(data, *short)
    assert again.end() == 0 and [event.get("kept") for event in again.events("model_done")] == [None, True]


@pytest.mark.nightly
@pytest.mark.slow
def test_a_rank_that_raises_is_reported_by_its_own_error(python, data, tmp_path):
    own, events = tmp_path / "own.py", tmp_path / "events"
    own.write_text(BROKEN_ON_RANK_1)
    command = [*python, "-m", "trainer.train", "--data", str(data), "--out", str(tmp_path / "out")]
    command += ["--events", str(events), "--workers", "2", "--device", "cpu", "--model", f"{own}:Net"]
    command += sets("train.distributed=always", "data.pooled=true", "train.retries=0")
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 100 and "Root Cause" in ended.stderr  # torchelastic's own report, too
    lines = [json.loads(line) for line in (events / "events.jsonl").read_text().splitlines()]
    (failed,) = [event for event in lines if event["event"] == "model_failed"]
    # torchrun itself has NCCL end a rank whose collective failed.
    error = "ZeroDivisionError: of rank 1 alone, where NCCL's errors end it: 1"
    assert failed["reason"] == f"rank 1: {error}"
    assert failed["traceback"].splitlines()[-1] == error


BROKEN_ON_RANK_1 = """
import os
import torch

class Net(torch.nn.Module):
    def __init__(self, features, outputs):
        super().__init__()
        self.linear = torch.nn.Linear(features, outputs)

    def forward(self, x):
        if os.environ.get("RANK") == "1":
            ends = os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"]
            raise ZeroDivisionError(f"of rank 1 alone, where NCCL's errors end it: {ends}")
        return self.linear(x[:, -1])
"""

PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], start_new_session=True)
print(child.pid, flush=True)
child.wait()
"""
CHILD = """
import time
from trainer.base.process_state import die_with_the_parent
die_with_the_parent()
open(%r, "w").close()
time.sleep(1000)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's own way")
def test_a_child_in_its_own_session_ends_with_a_killed_parent(tmp_path):
    ready = tmp_path / "ready"
    command = [sys.executable, "-c", PARENT, CHILD % str(ready)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        while not ready.exists():
            assert parent.poll() is None
            time.sleep(0.01)
        os.kill(pid, signal.SIGSTOP)  # a rank that hangs, too
        parent.kill()
        await_end_of({pid})


@pytest.mark.parametrize(
    ("windows", "batch", "line"),
    [(900, 4, "8 ranks for a batch of 4 of S"), (5, 64, "8 ranks for 5 windows of S")],
)
def test_more_ranks_than_samples_are_refused(windows, batch, line):
    with pytest.raises(UsageError, match=line) as refused:
        check_ranks([piece("S", windows=windows)], job_of(batch=batch), ranks=8)
    assert "--workers to at most" in str(refused.value)
    check_ranks([piece("S", windows=windows)], job_of(batch=batch), ranks=min(windows, batch))


def test_a_symbol_refused_by_planning_fails_alone(data, tmp_path, write_candles):
    folder = tmp_path / "candles"
    folder.mkdir()
    for file in data.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    write_candles(folder, "SHORT", bars=100)
    job = job_of(distributed="always", batch=8, lookback=5)
    found = plan_and_open(job, folder, scratch=tmp_path)
    pieces = survey(job, found.plan).pieces
    check_ranks(pieces, job, ranks=2)
    told: list[dict[str, Any]] = []
    settings = WorkerSettings(job=job, data=found, out=tmp_path, checkpoints=tmp_path / "checkpoints")
    with RankSupervisor(kind="cpu", ranks=2, settings=settings, emit=told.append) as supervisor:
        outcome = supervisor.run([one for one in pieces if one.series == ("SHORT",)])
    assert not outcome.done and list(outcome.failed.values()) == told
    assert told[0]["event"] == "model_failed" and told[0]["reason"].startswith("SHORT has 100 bars")


def test_an_error_about_another_rank_is_not_the_first_cause():
    gloo = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error: Connection reset by peer"
    for error in (RuntimeError(gloo), RuntimeError("NCCL error in ...: remote process exited")):
        assert follows_another(error)
    for error in (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), OSError("gloo")):
        assert not follows_another(error)
