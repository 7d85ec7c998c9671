"""Timing of a job's settings: rates, losses of the first steps, and what excludes them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.jobs import job_of
from trainer.job.job import Job
from trainer.train.packs import strategy as strategy_of
from trainer.train.packs.recorded import EAGER_STEPS
from trainer.train.tuning import timing as timing_of
from trainer.train.tuning.timing import COMPARED_STEPS, batches, make_members, measure

JOB = job_of(hidden=4, lookback=6, batch=32)
STREAM = job_of(model="tcn", width=8, blocks=2, chunk=32, batch=4)
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing_of, "ROWS", 500)
    monkeypatch.setattr(timing_of, "CHUNKS", 8)


def plain(job: Job, micro_batch: int, **keys: Any) -> Job:
    return job.with_expert(strategy="sequential", pack=1, micro_batch=micro_batch, **keys)


def test_windows_per_second_are_steps_times_batch():
    for batch in (32, 64):
        job = plain(JOB.with_train(batch=batch), 16)
        found = measure(job, make_members(1, job, CPU), 0.01)
        assert found.windows_per_second == pytest.approx(found.steps_per_second * batch)
        assert (found.strategy, found.micro_batch, found.batch) == ("sequential", 16, batch)


def test_a_timing_has_the_losses_of_the_first_steps():
    found = measure(plain(JOB, 16), make_members(2, JOB, CPU), 0.0, steps=COMPARED_STEPS)
    assert len(found.losses) == COMPARED_STEPS and {len(step) for step in found.losses} == {2}
    assert "losses" not in found.to_dict()


def test_on_a_cpu_a_few_slices_stand_for_a_large_batch(monkeypatch):
    taken: list[int] = []

    def form(members, job):
        taken.append(job.train.batch)
        return strategy_of.form_pack(members, job)

    monkeypatch.setattr(timing_of, "form_pack", form)
    large = plain(job_of(hidden=4, lookback=6, batch=4096), 64)
    found = measure(large, make_members(1, large, CPU), 0.01)
    assert taken == [256] and found.windows_per_second == pytest.approx(found.steps_per_second * 4096)


def test_a_tcns_timed_chunks_lie_within_its_rows():
    members = make_members(1, STREAM, CPU)
    (starts,) = batches(members, STREAM, 0)
    last = int(starts.max()) + STREAM.model.chunk + STREAM.model.bars_seen - 1
    assert len(starts) == 4 and last <= len(members[0].rows_TF)
    for again in (False, True):
        option = plain(STREAM, 2, activation_checkpointing=again)
        assert measure(option, members, 0.01).windows_per_second > 0


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
    members, option = make_members(1, JOB, CPU), plain(JOB, 16)
    assert measure(option, members, 0.01).excluded == "out of memory"
    error = RuntimeError("no kernel image is available")
    streams = measure(option.with_expert(strategy="streams"), members, 0.01)
    assert streams.excluded == "it fails here: no kernel image is available"
    with pytest.raises(RuntimeError, match="no kernel image"):
        measure(option, members, 0.01)


def test_a_gpus_rate_leaves_out_the_step_it_records(monkeypatch):
    """Plain modules are recorded at their third step, which takes longer than the two before it."""
    now, taken = [0.0], list[float]()

    class Pack:
        def step(self, active, starts):
            taken.append(9.0 if len(taken) == EAGER_STEPS else 0.5 if len(taken) < EAGER_STEPS else 0.25)
            now[0] += taken[-1]
            return torch.zeros(1)

    monkeypatch.setattr(timing_of, "form_pack", lambda members, job: Pack())
    monkeypatch.setattr(timing_of, "batches", lambda members, job, step: [])
    monkeypatch.setattr(timing_of.time, "perf_counter", lambda: now[0])
    on_gpu = [SimpleNamespace(rows_TF=SimpleNamespace(device=torch.device("cuda")))]
    seconds, _ = timing_of._steps(plain(JOB, 16), on_gpu, 0.0, fewest=timing_of.FEWEST_STEPS)
    assert seconds == 0.25
