"""The benchmark of the TCN: its rows, exclusions, and the arithmetic of an epoch."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys

import pytest
import torch

from tests.jobs import job_of, with_settings
from trainer.train.tuning import bench as benching
from trainer.train.tuning import timing as timing_of
from trainer.train.tuning.bench import bench, epoch_seconds, num_chunks, num_parameters
from trainer.train.tuning.timing import Timing, make_members

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")
TINY = {"blocks": 2, "width": 4, "chunk": 16}


@pytest.fixture(autouse=True)
def in_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benching, "QUICK_SECONDS", 0.05)


@pytest.mark.nightly
def test_each_batch_is_measured_with_and_without_checkpointing(monkeypatch):
    said: list[str] = []
    rows = bench(job_of(model="tcn", **TINY), CPU, quick=True, say=said.append)
    assert [(row.batch, row.activation_checkpointing) for row in rows] == [
        (1, False),
        (1, True),
        (8, False),
        (8, True),
    ]
    assert all(row.windows_per_second == pytest.approx(row.batch * row.steps_per_second) for row in rows)
    assert len(said) == len(rows) and "chunks/s" in said[0]


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process's memory")
def test_a_row_has_its_own_memory(monkeypatch, forked_children):
    monkeypatch.setattr(benching, "QUICK_BATCHES", {"cpu": (64, 1)})
    deep = {"blocks": 6, "width": 32, "chunk": 256, "micro_batch": 64}
    rows = bench(job_of(model="tcn", **deep), CPU, quick=True, say=lambda line: None)
    large, recomputed, small, _ = (row.memory_per_model_gib for row in rows)
    assert large > 2 * small  # though it came first
    assert small < recomputed < large


@pytest.mark.parametrize(
    ("name", "words"),
    [("_ended", "its process ended with exit code 1"), ("_killed", "exit code -9, probably out of memory")],
)
def test_a_process_that_ends_excludes_its_row(monkeypatch, forked_children, name, words):
    monkeypatch.setattr(benching, "_measure", globals()[name])  # pickled by its name: the child has it, too
    monkeypatch.setattr(
        multiprocessing, "get_context", lambda method, made=multiprocessing.get_context: made("spawn")
    )
    monkeypatch.setattr(benching, "QUICK_BATCHES", {"cpu": (1,)})
    row = bench(job_of(model="tcn", **TINY), CPU, quick=True, say=lambda line: None)[0]
    assert row.excluded.endswith(words) and row.windows_per_second == 0


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("CUDA out of memory"), torch.AcceleratorError("CUDA error: out of memory")],
)
def test_out_of_memory_on_a_gpu_excludes_a_row(monkeypatch, error):
    def too_much(*given: object, **how: object) -> float:
        raise error

    monkeypatch.setattr(
        benching,
        "make_members",
        lambda count, job, device: make_members(count, with_settings(job, chunk=8), CPU),
    )
    monkeypatch.setattr(timing_of, "_steps", too_much)
    for name in ("empty_cache", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, lambda *given: None)
    rows = bench(job_of(model="tcn"), torch.device("cuda"), quick=False, say=lambda line: None)
    assert [row.batch for row in rows[::2]] == [16, 64, 200, 1500]
    assert {row.excluded for row in rows} == {"out of memory"}


def test_an_epoch_is_a_pass_over_the_training_chunks():
    job = job_of(model="tcn", chunk=100)
    assert num_chunks(job, bars=10_000) == 70
    assert epoch_seconds(job, Timing.of(job, windows_per_second=7.0), bars=10_000) == 10.0


def test_on_a_gpu_the_model_has_its_full_size():
    job = job_of(model="tcn")
    assert (job.model.name, job.model.blocks, job.model.width, job.model.chunk) == ("tcn", 12, 512, 1024)
    assert 17e6 < num_parameters(job) < 20e6


def _killed(*given: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _ended(*given: object) -> None:
    os._exit(1)
