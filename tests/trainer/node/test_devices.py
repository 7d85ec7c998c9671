"""The GPUs that a node finds."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from trainer.aws.place import ACCOUNT, REHEARSAL
from trainer.base.errors import ConfigError, TrainingFailed
from trainer.node.devices import compare, own_devices, smoke_test
from trainer.node.packages import TORCH, check_torch

FOUR = "".join(f"{index}, NVIDIA L4, 22888\n" for index in range(4))


def test_all_gpus_are_found_and_named_for_torch() -> None:
    devices = compare(FOUR, expected=4, place=ACCOUNT)
    assert (devices.found, devices.kind, devices.note) == (4, "cuda", "NVIDIA L4")
    assert devices.names == ("cuda:0", "cuda:1", "cuda:2", "cuda:3")


def test_a_rehearsal_tries_the_one_cpu_out_once() -> None:
    assert compare(FOUR, expected=4, place=REHEARSAL).names == ("cpu",)


@pytest.mark.parametrize(
    "listing", ["", "0, NVIDIA L4, 22888\n", FOUR + "4, NVIDIA L4, 22888\n", "No devices were found\n"]
)
def test_another_number_than_expected_is_an_error(listing: str) -> None:
    with pytest.raises(TrainingFailed, match="this instance type has 4"):
        compare(listing, expected=4, place=ACCOUNT)


def test_a_smoke_test_that_does_not_answer_in_its_time_is_ended(tmp_path: Path) -> None:
    with pytest.raises(TrainingFailed, match="the smoke test hangs"):
        smoke_test(compare(FOUR, expected=4, place=ACCOUNT), folder=tmp_path, seconds=0)


def test_another_minor_of_torch_is_refused() -> None:
    assert check_torch(f"{TORCH}.7+cu130") == f"{TORCH}.7+cu130"
    for other in ("2.1", "3.13", f"{TORCH}1.0"):
        with pytest.raises(ConfigError, match="image_line"):
            check_torch(other)


def test_the_node_needs_the_torch_that_the_desk_is_tested_with() -> None:
    pyproject = (Path(__file__).parents[3] / "pyproject.toml").read_text()
    assert re.findall(r'"torch==(\d+\.\d+)', pyproject) == [TORCH]


@pytest.mark.parametrize(
    ("visible", "found"),
    [
        (None, (2, "cuda")),
        ("1", (1, "cuda")),
        ("", (1, "cpu")),
        ("-1", (1, "cpu")),
        ("0,1", (2, "cuda")),
        ("0,-1,1", (1, "cuda")),
    ],
)
def test_on_a_machine_of_ones_own_the_gpus_that_are_there_count(monkeypatch, visible, found):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    listing = "0, NVIDIA GeForce RTX 4090, 24564\n1, NVIDIA GeForce RTX 4090, 24564\n"
    devices = own_devices(lambda *_, **__: subprocess.CompletedProcess([], 0, stdout=listing))
    assert (devices.found, devices.kind) == found


def test_without_a_driver_it_is_the_cpu():
    def no_driver(*_, **__):
        raise FileNotFoundError("nvidia-smi")

    assert own_devices(no_driver).kind == "cpu"
