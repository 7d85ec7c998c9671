"""The device and profile of a training."""

from __future__ import annotations

import pytest
import torch

from tests.jobs import job_of
from trainer.base.errors import UsageError
from trainer.job.job import Job
from trainer.machines.choice import Device
from trainer.train.workers import devices
from trainer.train.workers.devices import choose_device


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with two L4, one of them partly taken."""
    found = (
        Device(name="NVIDIA L4", memory_gib=22.49, free_gib=22.0),
        Device(name="NVIDIA L4", memory_gib=22.49, free_gib=8.0),
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(devices, "gpus_here", lambda: found)


def test_a_gpu_that_is_asked_for_and_absent_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match="--device cuda, but torch finds no GPU here. Take --device cpu"):
        devices.device_kind("cuda")


def test_the_gpu_with_the_least_memory_decides(gpus):
    kind, choice = choose_device(Job(), "auto")
    assert (kind, choice.profile.name, choice.memory_gib) == ("cuda", "l4", 8.0)


def test_the_cpus_profile_means_the_cpu(gpus):
    kind, choice = choose_device(job_of(gpu_profile="cpu"), "auto")
    assert (kind, choice.profile.name) == ("cpu", "cpu")


def test_a_profile_larger_than_the_chip_is_refused(gpus):
    with pytest.raises(UsageError, match=r"GPU profile h200 is larger than the chip .* Take l4"):
        choose_device(job_of(gpu_profile="h200"), "auto")


def test_a_gpu_profile_needs_a_gpu_unless_the_cpu_was_chosen(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    kind, choice = choose_device(job_of(gpu_profile="h200"), "cpu")
    assert (kind, choice.profile.name, choice.why) == ("cpu", "cpu", "--device cpu: h200 is for a GPU")
    with pytest.raises(UsageError, match="this machine shows none"):
        choose_device(job_of(gpu_profile="h200"), "auto")
    with pytest.raises(UsageError, match="unknown GPU profile"):
        choose_device(job_of(gpu_profile="h2000"), "cpu")
