from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from trainer.config import Job
from trainer.errors import UsageError
from trainer.gpu_profiles.chips import named_profile
from trainer.gpu_profiles.choice import Choice, Device
from trainer.train import placement
from trainer.train.placement import choose_device, placed

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
    kind, choice = choose_device(Job(gpu_profile="cpu"), "auto")
    assert (kind, choice.profile.name) == ("cpu", "cpu")


def test_a_profile_larger_than_the_chip_ends_it_before_anything_starts(gpus):
    with pytest.raises(UsageError, match=r"GPU profile h200 is larger than the chip .* Take l4"):
        choose_device(Job(gpu_profile="h200"), "auto")


def test_a_gpus_profile_waits_while_the_cpu_was_asked_for_and_is_refused_where_there_is_no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    kind, choice = choose_device(Job(gpu_profile="h200"), "cpu")
    assert (kind, choice.profile.name, choice.why) == ("cpu", "cpu", "--device cpu: h200 is for a GPU")
    with pytest.raises(UsageError, match="this machine shows none"):
        choose_device(Job(gpu_profile="h200"), "auto")
    with pytest.raises(UsageError, match="unknown GPU profile"):
        choose_device(Job(gpu_profile="h2000"), "cpu")


def test_a_gpu_trains_as_many_models_as_fill_it_and_fit_and_the_batch_stays():
    choice = Choice(profile=named_profile("l4"), why="", memory_gib=22.35)
    alone = placed(Job(), choice, workers_per_gpu=1, symbols=A_YEAR)
    assert (alone.pack, alone.micro_batch, alone.batch) == (7, 0, 256)
    shared = placed(Job(), replace(choice, memory_gib=3.0), workers_per_gpu=2, symbols=A_YEAR)
    assert 1 <= shared.pack < alone.pack
    sliced = placed(Job(batch=16_384), replace(choice, memory_gib=3.0), workers_per_gpu=1, symbols=A_YEAR)
    assert 0 < sliced.micro_batch < sliced.batch == 16_384
    assert placed(Job(pack=3), choice, workers_per_gpu=1, symbols=A_YEAR).pack == 3
