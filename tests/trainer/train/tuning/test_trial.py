"""The trial: its candidates, exclusions, comparison and choice. A table has the candidates' speed, so no clock
is read.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from tests.jobs import job_of
from trainer.base.errors import UsageError
from trainer.job.job import Job
from trainer.machines.shapes import MODELS_AT_A_TIME
from trainer.train.packs.pack import Member
from trainer.train.packs.stacked import Fused
from trainer.train.tuning import timing as timing_of
from trainer.train.tuning import trial as trials
from trainer.train.tuning.timing import COMPARED_STEPS, Timing, make_members, measure
from trainer.train.tuning.trial import candidates, compare, disagreement, entry_of, has_choice, run_trial

JOB = job_of(hidden=4, lookback=6, batch=256, pack=4)
CPU = torch.device("cpu")
Speed = Callable[[Job], float]  # windows a second; 0: out of memory
LOSSES = tuple([0.7, 0.6, 0.5, 0.4] for _ in range(COMPARED_STEPS))


@pytest.fixture(autouse=True)
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing_of, "ROWS", 500)


class Device:
    """A device whose speed is known; what it was asked is kept."""

    def __init__(self, speed: Speed, **losses: Any) -> None:
        self.speed, self.losses = speed, losses
        self.asked: list[tuple[str, int, int]] = []

    def measure(self, job: Job, members: Sequence[Member], seconds: float, *, steps: int = 2) -> Timing:
        self.asked.append((job.expert.strategy, len(members), steps))
        if not (speed := self.speed(job)):
            return Timing.of(job, excluded="out of memory")
        losses = self.losses.get(job.expert.strategy, LOSSES)
        seen = tuple(step[: len(members)] for step in losses)
        return Timing.of(job, windows_per_second=speed, memory_per_model_gib=0.5, losses=seen)

    def compare(self, job: Job, *, batch_limit: int = 0) -> list[Timing]:
        keys = {"seconds": 3.0, "batch_limit": batch_limit, "timed": self.measure}
        return compare(job, CPU, **keys, say=lambda line: None)


def of(**speeds: float) -> Speed:
    return lambda job: speeds[job.expert.strategy]


def test_candidates_are_the_strategies_with_the_jobs_settings():
    def named(**keys: Any) -> list[tuple[str, int]]:
        options = candidates(job_of(**keys), "cuda")
        return [(one.expert.strategy, one.expert.pack) for one in options]

    most = MODELS_AT_A_TIME
    assert named() == [("sequential", 1), ("streams", most), ("fused", most)]
    assert named(pack=6) == [("sequential", 6), ("streams", 6), ("fused", 6)]
    assert named(strategy="fused") == [("sequential", 1), ("fused", most)]
    assert named(strategy="sequential") == named(compile="always") == [("sequential", 1)]
    assert {one.expert.micro_batch for one in candidates(job_of(batch=1024), "cuda")} == {1024}
    assert {one.expert.micro_batch for one in candidates(job_of(micro_batch=32), "cuda")} == {32}
    assert {one.expert.micro_batch for one in candidates(job_of(batch=1024), "cpu")} == {256}


@pytest.mark.parametrize(
    ("keys", "kind", "has"),
    [
        ({}, "cuda", True),
        ({"strategy": "sequential"}, "cuda", False),
        ({"strategy": "sequential", "batch": 0}, "cuda", True),
        ({"model": "tcn"}, "cuda", False),
        ({"model": "transformer"}, "cuda", False),
    ],
)
def test_only_several_strategies_or_batches_are_a_choice(keys, kind, has):
    assert has_choice(job_of(**keys), kind) is has


def test_the_fastest_strategy_that_agrees_wins():
    device = Device(of(sequential=10.0, streams=82.0, fused=25.0))
    timings = device.compare(JOB)
    assert [timing.strategy for timing in timings] == ["streams", "fused", "sequential"]
    assert device.asked == [("sequential", 3, 10), ("streams", 4, 10), ("fused", 4, 10)]
    assert entry_of(timings[0])["memory_per_model_gib"] == 0.5
    assert entry_of(timings[-1])["memory_per_model_gib"] == 0.0, "the formula knows it for any number"


def test_a_strategy_whose_losses_differ_loses():
    differ = ([0.7, 0.6, 0.5, 0.4], *LOSSES[1:4], [0.7, 0.6, 0.502, 0.4], *LOSSES[5:])
    first, *others = Device(of(sequential=10.0, streams=82.0, fused=25.0), streams=differ).compare(JOB)
    assert first.strategy == "fused"
    assert others[-1].excluded == "its losses differ by 4.0e-03 within 10 steps, 1e-03 is allowed"
    unknown = tuple([float("nan")] * 4 for _ in LOSSES)
    first, *_ = Device(of(sequential=1.0, streams=9.0, fused=9.0), streams=unknown, fused=unknown).compare(
        JOB
    )
    assert first.strategy == "sequential"
    plain, other = (Timing.of(JOB, losses=losses) for losses in (LOSSES, differ))
    assert disagreement(plain, other, half=True) == "" != disagreement(plain, other, half=False)


def test_out_of_memory_is_answered_with_half_as_many_models():
    device = Device(lambda job: 0.0 if job.expert.strategy == "streams" and job.expert.pack > 1 else 9.0)
    timings = device.compare(JOB)
    assert [ask[:2] for ask in device.asked] == [
        ("sequential", 3), ("streams", 4), ("streams", 2), ("streams", 1), ("fused", 4),
    ]  # fmt: skip
    assert {(timing.strategy, timing.pack) for timing in timings} >= {("streams", 1), ("fused", 4)}
    nothing = Device(of(sequential=9.0, streams=0.0, fused=0.0)).compare(JOB)
    assert [timing.excluded for timing in nothing] == ["", "out of memory", "out of memory"]


def test_where_plain_modules_do_not_fit_nothing_is_compared():
    device = Device(of(sequential=0.0, streams=9.0, fused=9.0))
    reasons = {timing.strategy: timing.excluded for timing in device.compare(JOB)}
    assert reasons["sequential"] == "out of memory" and reasons["fused"] == "plain modules: out of memory"
    assert len(device.asked) == 1


def test_a_jobs_own_strategy_is_taken_if_it_agrees():
    named = JOB.with_expert(strategy="fused")
    assert Device(of(sequential=10.0, fused=2.0)).compare(named)[0].strategy == "fused"
    assert Device(of(sequential=10.0, fused=0.0)).compare(named)[0].strategy == "sequential"


def test_an_auto_batch_is_the_smallest_of_the_fastest():
    auto = job_of(hidden=4, lookback=6, batch=0, strategy="sequential")
    rising = Device(lambda job: 1.0 * job.train.batch).compare(auto, batch_limit=4096)
    assert (rising[0].batch, rising[0].micro_batch) == (4096, 256)
    flat = Device(lambda job: 100.0 + min(job.train.batch, 512)).compare(auto, batch_limit=4096)
    assert flat[0].batch == 512
    assert {timing.batch for timing in flat} == {64, 128, 256, 512, 1024, 2048, 4096}
    few = Device(lambda job: 1.0 + job.train.batch).compare(auto, batch_limit=32)
    assert few[0].batch == 32 and few[0].micro_batch <= 32
    full = Device(lambda job: 0.0 if job.train.batch > 512 else 1.0 * job.train.batch)
    assert full.compare(auto, batch_limit=4096)[0].batch == 512
    assert len(full.asked) == 1 + 5, "the first that does not fit is the last"


def test_strategies_agree_and_a_broken_one_does_not(monkeypatch):
    small, said = job_of(hidden=2, layers=1, lookback=3, batch=8, pack=3), list[str]()
    assert not any(one.excluded for one in compare(small, CPU, seconds=0.0, say=said.append))

    def broken(job: Job, members: Sequence[Member], seconds: float, **how: Any) -> Timing:
        if job.expert.strategy != "fused":
            return measure(job, members, seconds, **how)

        def form(members: Sequence[Member], job: Job) -> Fused:
            pack = Fused(members, job)
            pack.set_learning_rate(1, 0.5)
            return pack

        with monkeypatch.context() as patched:
            patched.setattr(timing_of, "form_pack", form)
            return measure(job, members, seconds, **how)

    fused = small.with_expert(strategy="fused")
    (*_, last) = compare(fused, CPU, seconds=0.0, say=said.append, timed=broken)
    assert last.strategy == "fused" and "differ by" in last.excluded
    assert said == [f"fused is excluded: {last.excluded}"]
    assert len(make_members(2, small, CPU)) == 2


SMALL = job_of(hidden=4, lookback=6, batch=32, pack=2)


def die(*_: object) -> None:
    os._exit(7)


def hang(*_: object) -> None:
    time.sleep(600)


@pytest.mark.slow
@pytest.mark.nightly  # in process above
def test_a_child_process_returns_the_trial():
    found = run_trial(SMALL, device="cpu", seconds=0.3, batch_limit=0)
    assert found.failure == ""
    assert {timing.strategy for timing in found.timings} == {"sequential", "streams", "fused"}


@pytest.mark.slow
@pytest.mark.nightly  # call_in_child: tests/trainer/train/test_child_processes.py
def test_a_crashed_or_late_trial_is_a_failure(monkeypatch):
    monkeypatch.setattr(trials, "compare_and_send", die)
    died = run_trial(SMALL, device="cpu", seconds=1.0, batch_limit=0)
    assert died.failure == "its process ended with exit code 7"
    monkeypatch.setattr(trials, "compare_and_send", hang)
    monkeypatch.setattr(trials, "LIMIT_SECONDS", 0.1)
    assert run_trial(SMALL, device="cpu", seconds=1.0, batch_limit=0).failure == "it was not done after 0 s"


@pytest.mark.slow
@pytest.mark.nightly
def test_a_job_that_has_no_trial_here_says_why():
    found = run_trial(job_of(gpu_profile="b300"), device="auto", seconds=1.0, batch_limit=0)
    assert re.match("GPU profile b300 is (for a GPU|larger than the chip)", found.failure) or found.timings


def test_agents_have_no_trial():
    job = job_of(model="mlp", target="position")
    assert not has_choice(job, "cuda") and not has_choice(job, "cpu")
    with pytest.raises(UsageError, match="nothing to compare for agents"):
        trials.compare_here(job, device="cpu", seconds=1.0, say=pytest.fail)
