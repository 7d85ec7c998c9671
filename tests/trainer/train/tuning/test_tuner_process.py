"""The tuner's own process: its answer comes back, and its crash or delay costs nothing but time."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import torch

from trainer.gpu_profiles.tuned import known_here
from trainer.job import job_of
from trainer.train.tuning import tuner_process
from trainer.train.tuning.tuner_process import run_tuner

pytestmark = pytest.mark.slow

JOB = job_of(hidden=4, lookback=6, batch=128)


@pytest.fixture(autouse=True)
def profiles_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAYFLY_PROFILES", str(tmp_path / "gpu_profiles.toml"))


def die(*_: object) -> None:
    os._exit(7)


def hang(*_: object) -> None:
    time.sleep(600)


def test_the_answer_comes_back_and_is_kept_on_this_machine():
    found = run_tuner(JOB, device="cpu", seconds=500.0, batch_limit=0)
    assert found.failure == "" and {timing.candidate.micro_batch for timing in found.timings} == {64, 128}
    entry = known_here("cpu", JOB, torch=torch.__version__)
    assert entry is not None and entry["micro_batch"] == found.timings[0].candidate.micro_batch


def test_a_crash_is_told_and_a_delay_ends_with_its_time(monkeypatch):
    monkeypatch.setattr(tuner_process, "tune_and_tell", die)
    assert run_tuner(JOB, device="cpu", seconds=500.0, batch_limit=0).failure == "its process ended with exit code 7"
    monkeypatch.setattr(tuner_process, "tune_and_tell", hang)
    assert run_tuner(JOB, device="cpu", seconds=0.1, batch_limit=0).failure == "it was not done after 0 s"


def test_a_job_that_can_not_be_tuned_here_says_why():
    found = run_tuner(job_of(gpu_profile="h200"), device="auto", seconds=500.0, batch_limit=0)
    assert "h200 is for a GPU" in found.failure or found.timings
