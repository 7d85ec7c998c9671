"""The trial: its candidates, exclusions, choice and cache. A table has the candidates' speed, so no clock
is read.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence

import pytest
import torch

from tests.jobs import job_of
from trainer.job.job import Job
from trainer.machines.choice import choose
from trainer.machines.measurements import known_here
from trainer.train.packs.pack import Member, Pack
from trainer.train.tuning import timing as timing_of
from trainer.train.tuning import tune as tuning
from trainer.train.tuning.timing import Candidate, Timing
from trainer.train.tuning.tune import candidates, remember, run_tuner, tune

JOB = job_of(hidden=4, lookback=6, batch=256)
STREAM = job_of(model="tcn", width=512, batch=16)
CPU = torch.device("cpu")
Speed = Callable[[Candidate], float]  # windows a second; 0: out of memory


@pytest.fixture(autouse=True)
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing_of, "ROWS", 500)


def option(strategy: str = "sequential", pack: int = 1, micro_batch: int = 32) -> Candidate:
    return Candidate(strategy=strategy, pack=pack, micro_batch=micro_batch)


class Device:
    """A device whose speed is known, and whose clock stands still but for what is measured."""

    def __init__(self, speed: Speed) -> None:
        self.speed, self.now = speed, 0.0
        self.measured: list[Candidate] = []

    def measure(self, option: Candidate, members: Sequence[Member], job: Job, seconds: float) -> Timing:
        self.measured.append(option)
        self.now += seconds
        assert len(members) == option.pack
        if not (speed := self.speed(option)):
            return Timing(candidate=option, excluded="out of memory")
        steps = speed / option.of(job).train.batch
        return Timing(candidate=option, windows_per_second=speed, steps_per_second=steps)

    def tune(self, job: Job, *, seconds: float = 20.0, batch_limit: int = 0) -> list[Timing]:
        keys = {"seconds": seconds, "batch_limit": batch_limit, "measured": self.measure}
        return tune(job, CPU, **keys, say=lambda line: None, clock=lambda: self.now)


def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the tuner time a GPU's candidates on this CPU's members."""
    found = candidates
    monkeypatch.setattr(tuning, "candidates", lambda job, kind: found(job, "cuda"))


def test_a_cpus_candidates_are_slices_within_the_batch():
    assert [option.micro_batch for option in candidates(job_of(batch=1024), "cpu")] == [64, 128, 256, 512]
    assert [option.micro_batch for option in candidates(job_of(batch=100), "cpu")] == [64, 100]
    assert {(option.strategy, option.pack) for option in candidates(Job(), "cpu")} == {("sequential", 1)}


def test_a_gpus_candidates_keep_the_jobs_settings():
    options = candidates(Job(), "cuda")
    assert {option.strategy for option in options} == {"sequential", "streams", "fused"}
    assert {option.pack for option in candidates(job_of(pack=6), "cuda")} == {6}
    assert {option.strategy for option in candidates(job_of(strategy="fused"), "cuda")} == {"fused"}
    compiled = candidates(job_of(compile="always"), "cuda")
    assert {option.strategy for option in compiled} == {"sequential"}, "a recorded program compiles nothing"
    assert {option.micro_batch for option in candidates(job_of(micro_batch=32), "cuda")} == {32}
    assert {option.activation_checkpointing for option in options} == {False}


def test_a_tcns_candidates_are_slices_with_checkpointing():
    options = candidates(STREAM, "cuda")
    assert {option.micro_batch for option in options} == {4, 8, 16}
    assert {option.activation_checkpointing for option in options} == {False, True}
    assert {option.activation_checkpointing for option in candidates(STREAM, "cpu")} == {False}
    assert {(option.strategy, option.pack) for option in options} == {("sequential", 1)}


def test_the_fastest_candidate_wins_within_the_time():
    device = Device(lambda option: 1000 / abs(option.micro_batch - 120))
    first, *others = device.tune(job_of(hidden=4, lookback=6, batch=1024), seconds=4.0)
    assert first.candidate.micro_batch == 128 and [timing.excluded for timing in others] == ["", "", ""]
    assert device.now <= 4.0 and len(device.measured) == 4


def test_candidates_without_time_left_are_not_begun():
    device = Device(lambda option: 100.0)
    device.measure = lambda option, members, job, seconds: (  # type: ignore[method-assign]
        setattr(device, "now", device.now + 3.0) or Timing(candidate=option, windows_per_second=1.0)
    )
    timings = device.tune(job_of(hidden=4, lookback=6, batch=1024), seconds=8.0)
    assert [timing.excluded for timing in timings] == ["", "", "", "no time left"]


def test_a_disagreeing_strategy_is_excluded_and_logged(monkeypatch):
    monkeypatch.setattr(tuning, "candidates", lambda job, kind: [option(), option("fused", 2)])
    monkeypatch.setattr(tuning, "disagreement", lambda other, members, job: "its losses differ by 1.0e-01")
    said: list[str] = []
    first, last = tune(JOB, CPU, seconds=0.1, say=said.append, measured=Device(lambda option: 1.0).measure)
    assert first.candidate.strategy == "sequential" and last.excluded == "its losses differ by 1.0e-01"
    assert said == ["fused is excluded: its losses differ by 1.0e-01"]


def test_a_strategy_that_fails_on_this_chip_is_excluded(monkeypatch):
    monkeypatch.setattr(tuning, "candidates", lambda job, kind: [option(), option("streams", 2)])

    def form(members: Sequence[Member], job: Job) -> Pack:
        raise RuntimeError(
            "CUDA error: not permitted when stream is capturing\nCompile with `TORCH_USE_CUDA_DSA`"
        )

    monkeypatch.setattr(tuning, "form_pack", form)
    first, last = Device(lambda option: 1.0).tune(JOB)
    assert first.candidate.strategy == "sequential"
    assert last.excluded == "it fails here: CUDA error: not permitted when stream is capturing"


def test_a_candidate_out_of_memory_loses():
    timings = Device(lambda option: 0 if option.micro_batch > 128 else option.micro_batch).tune(JOB)
    answers = [(timing.candidate.micro_batch, timing.excluded) for timing in timings]
    assert answers == [(128, ""), (64, ""), (256, "out of memory")]


def test_smaller_slices_are_tried_if_nothing_fits(monkeypatch):
    on_a_gpu(monkeypatch)
    monkeypatch.setattr(tuning, "disagreement", lambda other, members, job: "")
    small = Device(lambda option: 5.0 if option.strategy == "sequential" and option.micro_batch <= 64 else 0)
    assert small.tune(JOB)[0].candidate == option(micro_batch=64)
    smaller = Device(lambda option: 5.0 * (option.activation_checkpointing and option.micro_batch <= 128))
    first = smaller.tune(JOB)[0].candidate
    assert (first.micro_batch, first.activation_checkpointing) == (128, True)
    assert all(timing.excluded == "out of memory" for timing in Device(lambda option: 0).tune(JOB))


def test_checkpointing_is_chosen_only_if_faster(monkeypatch):
    on_a_gpu(monkeypatch)

    def speed(option: Candidate) -> float:  # without it, only slices of 4 chunks fit
        if option.activation_checkpointing:
            return option.micro_batch * 0.7
        return 4.0 if option.micro_batch == 4 else 0

    tiny = job_of(model="tcn", width=8, blocks=2, chunk=32, batch=16)
    first = Device(speed).tune(tiny)[0].candidate
    assert (first.micro_batch, first.activation_checkpointing) == (16, True)
    first = Device(lambda option: 9.0 - option.activation_checkpointing).tune(tiny)[0].candidate
    assert not first.activation_checkpointing


def test_an_auto_batch_is_the_smallest_of_the_fastest():
    auto = job_of(hidden=4, lookback=6, batch=0)
    rising = Device(lambda option: min(option.batch or 256, 512) * 1.0 + option.batch * 0.01)
    rising = rising.tune(auto, batch_limit=4096)
    assert rising[0].candidate.batch == 4096
    flat = Device(lambda option: 100.0 + min(option.batch or 256, 512)).tune(auto, batch_limit=4096)
    assert flat[0].candidate.batch == 512
    assert {timing.candidate.batch for timing in flat} == {0, 64, 128, 256, 512, 1024, 2048, 4096}
    few = Device(lambda option: 1.0 + option.batch).tune(auto, batch_limit=32)
    assert few[0].candidate.batch == 32 and few[0].candidate.micro_batch <= 32


def test_a_measurement_is_kept_by_shape_and_profile():
    best = Timing(candidate=option(micro_batch=64), windows_per_second=1234.56)
    remember(choose("cpu", None), JOB, best)
    entry = known_here("cpu", JOB, torch=torch.__version__)
    assert entry is not None and (entry["micro_batch"], entry["windows_per_second"]) == (64, 1234.6)


SMALL = job_of(hidden=4, lookback=6, batch=128)


def die(*_: object) -> None:
    os._exit(7)


def hang(*_: object) -> None:
    time.sleep(600)


@pytest.mark.slow
def test_a_child_process_returns_and_keeps_the_trial(forked_children):
    found = run_tuner(SMALL, device="cpu", seconds=1.0, batch_limit=0)
    assert found.failure == "" and {timing.candidate.micro_batch for timing in found.timings} == {64, 128}
    entry = known_here("cpu", SMALL, torch=torch.__version__)
    assert entry is not None and entry["micro_batch"] == found.timings[0].candidate.micro_batch


@pytest.mark.slow
def test_a_crashed_or_late_trial_is_a_failure(monkeypatch, forked_children):
    monkeypatch.setattr(tuning, "tune_and_tell", die)
    died = run_tuner(SMALL, device="cpu", seconds=1.0, batch_limit=0)
    assert died.failure == "its process ended with exit code 7"
    monkeypatch.setattr(tuning, "tune_and_tell", hang)
    monkeypatch.setattr(tuning, "LIMIT_SECONDS", 0.1)
    assert run_tuner(SMALL, device="cpu", seconds=1.0, batch_limit=0).failure == "it was not done after 0 s"


@pytest.mark.slow
def test_a_job_that_cannot_be_tuned_here_says_why(forked_children):
    found = run_tuner(job_of(gpu_profile="b300"), device="auto", seconds=1.0, batch_limit=0)
    assert re.match("GPU profile b300 is (for a GPU|larger than the chip)", found.failure) or found.timings
