from __future__ import annotations

import os
from pathlib import Path

import pytest

from trainer.base.errors import UsageError
from trainer.machines.chips import named_profile
from trainer.machines.choice import Device, check_fits, choose, gpus_here, profile_of, read_gpus

LISTING = """\
NVIDIA H200, 143771, 143212, 9.0, GPU-ab12c3-77, Disabled
NVIDIA GeForce RTX 4090, 24564, 9000, 8.9, GPU-ab19d0-01, [N/A]
Tesla T4, 15360, [N/A], 7.5, GPU-0e0e0e-02, [N/A]
"""


def device(name: str, memory_gib: float, free_gib: float | None = None) -> Device:
    return Device(name=name, memory_gib=memory_gib, free_gib=memory_gib if free_gib is None else free_gib)


@pytest.fixture(autouse=True)
def no_wish(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPU_PROFILE", raising=False)


@pytest.mark.parametrize(
    ("name", "memory_gib", "profile"),
    [
        ("NVIDIA L4", 22.5, "l4"),
        ("NVIDIA L4-3Q", 2.8, "l4_eighth"),
        ("NVIDIA L40S", 44.99, "l40s"),
        ("Tesla T4", 15.0, "t4"),  # with ECC
        ("Tesla V100-SXM2-16GB", 15.8, "v100_16gb"),
        ("NVIDIA A100-SXM4-40GB", 39.6, "a100_40gb"),
        ("NVIDIA A100 80GB PCIe", 80.0, "a100_80gb"),
        ("NVIDIA H100 80GB HBM3", 79.6, "h100"),
        ("NVIDIA GeForce RTX 5080", 15.9, "rtx_5080"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 95.6, "rtx_pro_6000"),
        ("Quadro P400", 2.0, "unknown"),
    ],
)
def test_a_device_is_known_by_its_name_and_memory(name, memory_gib, profile):
    assert profile_of(device(name, memory_gib)).name == profile


def test_a_slice_of_a_divided_chip_has_its_share():
    slice_ = profile_of(device("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 9.8))
    assert (slice_.name, slice_.memory_gib, slice_.multiprocessors) == ("h100", 9.8, 16)
    assert slice_.chip.startswith("12% of")


def test_a_given_profile_overrides_environment_and_device(monkeypatch):
    here = device("NVIDIA H200", 140.4)
    assert choose("", here).profile.name == "h200"
    monkeypatch.setenv("GPU_PROFILE", "h100")
    found = choose("", here)
    assert (found.profile.name, found.memory_gib, found.why) == ("h100", 80.0, "named by $GPU_PROFILE")
    assert choose("l4", here).profile.name == "l4"


def test_only_free_memory_is_used_and_named():
    found = choose("", device("NVIDIA GeForce RTX 4090", 24.0, free_gib=9.0))
    assert found.memory_gib == 9.0
    assert found.why == "this is NVIDIA GeForce RTX 4090 with 24.0 GiB, 9.0 GiB of it free"


def test_without_a_gpu_the_profile_is_the_cpus():
    found = choose("", None)
    assert found.profile.name == "cpu" and found.profile.memory_gib > 0
    assert found.why.startswith("no GPU here")


def test_a_cpu_has_its_share_of_the_containers_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr("trainer.machines.host_memory.LIMIT", limit)
    limit.write_text("max\n", encoding="ascii")
    whole = choose("cpu", None).memory_gib
    limit.write_text(f"{2**30}\n", encoding="ascii")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    assert choose("cpu", None).memory_gib == round(1 / cores, 2) < whole
    limit.write_text(f"{2**60}\n", encoding="ascii")  # more than the machine has
    assert choose("cpu", None).memory_gib == whole


def test_a_profile_larger_than_the_chip_is_refused():
    line = r"GPU profile h200 is larger than the chip \(it is for 141\.0 GiB, .*\)\. Take l4, or"
    with pytest.raises(UsageError, match=line):
        choose("h200", device("NVIDIA L4", 22.35))
    with pytest.raises(UsageError, match=r"has 9\.8 GiB\)\. Leave the profile out"):
        check_fits(named_profile("h100"), chip="NVIDIA H100 80GB HBM3 MIG 1g.10gb", memory_gib=9.8)


def test_a_profile_of_a_gpu_is_refused_where_there_is_none():
    with pytest.raises(UsageError, match="GPU profile h100 is for a GPU"):
        choose("h100", None)
    with pytest.raises(UsageError, match="unknown GPU profile 'h1000'"):
        choose("h1000", None)


def test_nvidia_smi_is_read_with_its_gaps():
    h200, rtx_4090, t4 = read_gpus(LISTING)
    assert (h200.name, round(h200.memory_gib, 1), h200.compute_capability) == ("NVIDIA H200", 140.4, "9.0")
    assert round(rtx_4090.free_gib, 1) == 8.8
    assert t4.free_gib == t4.memory_gib == 15.0
    assert read_gpus("No devices were found\n") == ()


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        (None, "H200 4090 T4"),
        ("2,0", "T4 H200"),
        ("", ""),
        ("-1", ""),
        ("GPU-ab12", "H200"),
        ("GPU-0e0e0e-02,GPU-ab19", "T4 4090"),
        ("7", ""),
        ("MIG-3f", ""),
        ("DIVIDED", ""),
    ],
)
def test_gpus_that_are_hidden_are_not_here(tmp_path, monkeypatch, visible, names):
    """Nor are those that are divided: a slice's memory is not the chip's, and torch tells it."""
    listing = LISTING.replace("Disabled", "Enabled") if visible == "DIVIDED" else LISTING
    visible = None if visible == "DIVIDED" else visible
    (tmp_path / "listing").write_text(listing)
    stub = tmp_path / "nvidia-smi"
    stub.write_text(f"#!/bin/sh\ncat {tmp_path / 'listing'}\n")
    stub.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [gpu.name.split()[-1] for gpu in gpus_here()] == names.split()
