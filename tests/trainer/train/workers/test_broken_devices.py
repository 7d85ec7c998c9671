"""Real workers on a device that is broken, and under an allocator that refuses. The bookkeeping, with played
workers, is `test_lost_workers`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.disks import fill, small_disk
from tests.jobs import job_of
from tests.processes import await_end_of
from trainer.job.job import Job
from trainer.train.inputs.source import plan_and_open
from trainer.train.inputs.survey import survey
from trainer.train.own.probe_model import measure_model
from trainer.train.workers import supervisor as supervising
from trainer.train.workers.assignment import Outcome, WorkerSettings
from trainer.train.workers.supervisor import Supervisor

pytestmark = pytest.mark.nightly
SMALL = {"layers": 1, "hidden": 4, "lookback": 20, "timeframe": "1m", "epochs": 1}
SHAPE: Mapping[str, Any] = {
    "profile": "cpu",
    "strategy": "sequential",
    "activation_checkpointing": False,
    "batch": 64,
    "torch": "2.13.0",
    "from": {},
}
GREEDY = """
import torch
from torch import nn

class Greedy(nn.Module):
    def __init__(self, features, outputs):
        super().__init__()
        self.head = nn.Linear(features, outputs)

    def forward(self, x_NLF):
        if self.training and torch.is_grad_enabled() and len(x_NLF) > 16:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return self.head(x_NLF.mean(1))
"""


@dataclass
class Training:
    """A training of small symbols by real workers on CPUs, in the test's folder."""

    folder: Path
    write_candles: Callable[..., Path]
    events: list[dict[str, Any]] = field(default_factory=list)

    @property
    def out(self) -> Path:
        return self.folder / "out"

    def named(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] == kind]

    def run(self, job: Job, *, symbols: int, workers: int) -> Outcome:
        (self.folder / "candles").mkdir()
        for number in range(symbols):
            self.write_candles(self.folder / "candles", f"S{number}-USD", bars=600, seed=number)
        data = plan_and_open(job, self.folder / "candles", scratch=self.folder)
        choice = {**SHAPE, "pack": job.expert.pack, "micro_batch": job.expert.micro_batch}
        folders = {"out": self.out, "checkpoints": self.folder / "c"}
        settings = WorkerSettings(job=job, data=data, choice=choice, **folders)
        known: dict[str, Any] = {"settings": settings, "emit": self.events.append}
        self.out.mkdir(exist_ok=True)
        with Supervisor(kind="cpu", num_workers=workers, **known) as supervisor:
            outcome = supervisor.run(survey(job, data.plan).pieces)
        await_end_of({event["pid"] for event in self.events if "pid" in event})
        return outcome


@pytest.fixture
def training(tmp_path: Path, write_candles: Callable[..., Path], forked_children: None) -> Training:
    return Training(tmp_path, write_candles)


def test_a_device_that_ends_each_worker_is_tried_and_set_aside(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no such GPU: a worker on it ends before its first step, and so does its smoke test."""
    monkeypatch.setattr(supervising, "device_of", lambda kind, number: ("cpu", "cuda:7")[number])
    outcome = training.run(job_of(**SMALL, batch=64, retries=1), symbols=6, workers=2)
    assert len(outcome.done) == 6 and not outcome.failed
    (aside,) = training.named("device_set_aside")
    assert aside["device"] == "cuda:7" and aside["reason"].startswith("its smoke test fails: ")
    retries = training.named("retry")
    assert outcome.retries == sum(event.get("charged", True) for event in retries) < len(retries)
    assert "cuda:7 is set aside" in retries[-1]["reason"]


def test_no_device_left_ends_a_real_training_at_once(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervising, "device_of", lambda kind, number: f"cuda:{6 + number}")
    outcome = training.run(job_of(**SMALL, batch=64, retries=1), symbols=6, workers=2)
    assert len(outcome.failed) == 6 and not outcome.done
    (reason,) = {event["reason"] for event in outcome.failed.values()}
    assert reason.startswith("no device is left: cuda:") and reason.count("its smoke test fails") == 2


def test_a_refusing_allocator_gets_smaller_packs_then_slices(training: Training) -> None:
    file = training.folder / "greedy.py"
    file.write_text(GREEDY)
    keys = {"lookback": 20, "timeframe": "1m", "epochs": 1, "batch": 64, "micro_batch": 64}
    job = job_of(model=f"{file}:Greedy", pack=2, strategy="sequential", retries=0, **keys)
    model = replace(job.own_files["model"], sha256=hashlib.sha256(file.read_bytes()).hexdigest())
    job = job.with_own_files({"model": model})
    job = job.with_own_files({"model": measure_model(job, lambda stage: None)})
    outcome = training.run(job, symbols=3, workers=1)
    assert len(outcome.done) == 3 and not outcome.failed and outcome.retries == 0
    lowered = training.named("out_of_memory")
    assert [(event["pack"], event["micro_batch"]) for event in lowered] == [(1, 64), (1, 32), (1, 16)]
    assert "CUDA out of memory" in lowered[0]["reason"]
    assert not any(event.get("charged", True) for event in training.named("retry"))


def test_a_model_that_the_disk_has_no_room_for_has_failed(training: Training) -> None:
    training.out.mkdir()
    with small_disk(training.out):
        fill(training.out)
        outcome = training.run(job_of(**SMALL, batch=64, retries=1), symbols=2, workers=2)
        assert [path.name for path in training.out.iterdir()] == ["big"], "no half of a model"
    assert len(outcome.failed) == 2 and outcome.retries == 2
    for event in outcome.failed.values():
        assert event["reason"].endswith("(No space left on device). Free some space.")
