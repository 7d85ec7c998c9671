"""Timing of one candidate, and the comparison of a strategy with plain modules over ten steps."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.jobs import job_of
from trainer.train.packs import strategy as strategy_of
from trainer.train.packs.stacked import Fused
from trainer.train.tuning import timing as timing_of
from trainer.train.tuning.timing import Candidate, batches, disagreement, make_members, measure

JOB = job_of(hidden=4, lookback=6, batch=32)
STREAM = job_of(model="tcn", width=8, blocks=2, chunk=32, batch=4)
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing_of, "ROWS", 500)
    monkeypatch.setattr(timing_of, "CHUNKS", 8)


def test_windows_per_second_are_steps_times_batch():
    option = Candidate(strategy="sequential", pack=1, micro_batch=16)
    found = measure(option, make_members(1, JOB, CPU), JOB, 0.01)
    assert found.windows_per_second == pytest.approx(found.steps_per_second * 32)
    auto = measure(replace(option, batch=64), make_members(1, JOB, CPU), JOB, 0.01)
    assert auto.windows_per_second == pytest.approx(auto.steps_per_second * 64)


def test_on_a_cpu_a_few_slices_stand_for_a_large_batch(monkeypatch):
    taken: list[int] = []

    def form(members, job):
        taken.append(job.train.batch)
        return strategy_of.form_pack(members, job)

    monkeypatch.setattr(timing_of, "form_pack", form)
    large = job_of(hidden=4, lookback=6, batch=4096)
    option = Candidate(strategy="sequential", pack=1, micro_batch=64)
    found = measure(option, make_members(1, large, CPU), large, 0.01)
    assert taken == [256] and found.windows_per_second == pytest.approx(found.steps_per_second * 4096)


def test_a_tcns_timed_chunks_lie_within_its_rows():
    members = make_members(1, STREAM, CPU)
    (starts,) = batches(members, STREAM, 0)
    last = int(starts.max()) + STREAM.model.chunk + STREAM.model.bars_seen - 1
    assert len(starts) == 4 and last <= len(members[0].rows_TF)
    for again in (False, True):
        option = Candidate(strategy="sequential", pack=1, micro_batch=2, activation_checkpointing=again)
        assert measure(option, members, STREAM, 0.01).windows_per_second > 0


def _while_recording(error: RuntimeError) -> RuntimeError:
    """Return what ends a recording that `error` broke off: its own end fails, too, and hides the reason."""
    end = RuntimeError("CUDA error: operation failed due to a previous error during capture")
    end.__context__ = error
    return end


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: 1 TB"),
        torch.AcceleratorError("CUDA error: out of memory"),  # of the driver: a graph's memory, or a kernel's
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        _while_recording(torch.OutOfMemoryError("CUDA out of memory")),
    ],
)
def test_only_errors_of_plain_modules_are_raised(monkeypatch, error):
    def form(members, job):
        raise error

    monkeypatch.setattr(timing_of, "form_pack", form)
    members, option = make_members(1, JOB, CPU), Candidate(strategy="sequential", pack=1, micro_batch=16)
    assert measure(option, members, JOB, 0.01).excluded == "out of memory"
    error = RuntimeError("no kernel image is available")
    streams = measure(replace(option, strategy="streams"), members, JOB, 0.01)
    assert streams.excluded == "it fails here: no kernel image is available"
    with pytest.raises(RuntimeError, match="no kernel image"):
        measure(option, members, JOB, 0.01)


def test_a_disagreeing_strategy_is_reported_with_its_error():
    members = make_members(3, JOB, CPU)
    assert disagreement(Fused(members, JOB), members, JOB) == ""
    broken = Fused(members, JOB)
    broken.set_learning_rate(1, 0.5)
    assert "differ by" in disagreement(broken, members, JOB)
