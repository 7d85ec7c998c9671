from __future__ import annotations

import pytest
import torch

from trainer.errors import UsageError
from trainer.gpu_profiles.chips import named_profile
from trainer.gpu_profiles.choice import Choice, Device
from trainer.job import Job, job_of
from trainer.train.tuning import placement
from trainer.train.tuning.placement import choose_device, placed

A_YEAR = {"A-USD": {"bars": 300_000}, "B-USD": {"bars": 525_600}}


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with two L4, one of them partly taken."""
    found = (
        Device(name="NVIDIA L4", memory_gib=22.49, free_gib=22.0),
        Device(name="NVIDIA L4", memory_gib=22.49, free_gib=8.0),
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(placement, "gpus_here", lambda: found)


def test_the_gpu_with_the_least_room_decides(gpus):
    kind, choice = choose_device(Job(), "auto")
    assert (kind, choice.profile.name, choice.memory_gib) == ("cuda", "l4", 8.0)


def test_the_cpus_profile_means_the_cpu(gpus):
    kind, choice = choose_device(job_of(gpu_profile="cpu"), "auto")
    assert (kind, choice.profile.name) == ("cpu", "cpu")


def test_a_profile_larger_than_the_chip_ends_it_before_anything_starts(gpus):
    with pytest.raises(UsageError, match=r"GPU profile h200 is larger than the chip .* Take l4"):
        choose_device(job_of(gpu_profile="h200"), "auto")


def test_a_gpus_profile_waits_while_the_cpu_was_asked_for_and_is_refused_where_there_is_no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    kind, choice = choose_device(job_of(gpu_profile="h200"), "cpu")
    assert (kind, choice.profile.name, choice.why) == ("cpu", "cpu", "--device cpu: h200 is for a GPU")
    with pytest.raises(UsageError, match="this machine shows none"):
        choose_device(job_of(gpu_profile="h200"), "auto")
    with pytest.raises(UsageError, match="unknown GPU profile"):
        choose_device(job_of(gpu_profile="h2000"), "cpu")


def place(job: Job, memory_gib: float = 22.35, *, tuned: Job | None = None, workers_per_gpu: int = 1) -> Job:
    choice = Choice(profile=named_profile("l4"), why="", memory_gib=memory_gib)
    return placed(job, choice, tuned=tuned or job, workers_per_gpu=workers_per_gpu, symbols=A_YEAR)


def test_a_gpu_trains_as_many_models_as_fill_it_and_fit_and_the_batch_stays():
    alone = place(Job())
    assert (alone.train.pack, alone.train.micro_batch, alone.train.batch) == (7, 0, 256)
    assert 1 <= place(Job(), 3.0, workers_per_gpu=2).train.pack < alone.train.pack
    sliced = place(job_of(batch=16_384), 3.0)
    assert 0 < sliced.train.micro_batch < sliced.train.batch == 16_384
    assert place(job_of(pack=3)).train.pack == 3


def test_what_was_tuned_is_taken_as_far_as_it_fits_and_never_over_the_jobs_own_word():
    tuned = job_of(strategy="fused", pack=32, micro_batch=128)
    assert place(Job(), 141.0, tuned=tuned) == tuned
    small = place(Job(), 3.0, tuned=tuned)
    assert (small.train.strategy, small.train.micro_batch) == ("fused", 128) and 1 <= small.train.pack < 32
    assert place(job_of(pack=2), 3.0, tuned=job_of(pack=2, micro_batch=128)).train.pack == 2
