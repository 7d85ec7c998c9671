"""The compatibility matrix: what its table says of each type, and that the page shows the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer.machines.compatibility import chip_of, judge, matrix, torch_of
from trainer.machines.instances import catalogue
from trainer.machines.rates import TORCH

PAGE = Path(__file__).resolve().parents[3] / "docs" / "compatibility.md"
LINE = f"oss-nvidia-driver-gpu-pytorch-{TORCH}-ubuntu-26.04"
OLDER = LINE.replace(TORCH, "2.12")


def test_every_launchable_type_has_its_chip_in_the_table() -> None:
    for machine in catalogue().values():
        chip = chip_of(machine.name)
        assert chip is not None, machine.name
        assert chip.gpu in machine.gpu_model


def test_builds_are_of_the_torch_that_this_code_needs() -> None:
    """A newer torch needs its rows: what has code for which chip changes with each minor."""
    assert {build.torch for build in matrix().builds} == {TORCH}
    for image in matrix().images:
        (build,) = (build for build in matrix().builds if build.index == image.index)
        assert build.first_driver <= image.driver


@pytest.mark.parametrize("family", ["g4dn", "g5", "g6", "g6e", "p4d", "p5", "p5en", "p6-b200"])
def test_types_of_the_release_notes_work(family: str) -> None:
    verdict = judge(f"{family}.48xlarge", LINE)
    assert verdict.works and not verdict.unproven


@pytest.mark.parametrize("name", ["g7.2xlarge", "g7e.2xlarge", "p6-b300.48xlarge", "h9.large"])
def test_an_unnamed_type_is_unproven_and_not_refused(name: str) -> None:
    verdict = judge(name, LINE)
    assert verdict.works and verdict.unproven


@pytest.mark.parametrize(
    ("name", "line", "why", "do"),
    [
        ("p3.8xlarge", LINE, f"driver 580 is the last for its V100, and {LINE} has 595", "a newer GPU"),
        ("g5g.xlarge", LINE, "its CPU is arm64, and image lines are for x86_64", "g6.xlarge"),
        ("g6.xlarge", OLDER, f"has torch 2.12, and this code needs {TORCH}", f"PyTorch {TORCH}"),
    ],
)
def test_an_incompatible_type_says_why_and_what_to_do(name: str, line: str, why: str, do: str) -> None:
    verdict = judge(name, line)
    assert why in verdict.why and do in verdict.do


def test_code_of_an_earlier_minor_runs_another_major_needs_ptx() -> None:
    build = next(one for one in matrix().builds if one.index == "cu130")
    runs = {one.gpu: build.has_code_for(one) for one in matrix().chips}
    assert runs["L4"] and runs["B300"] and runs["RTX PRO 6000"]  # 8.9 by 8.6, 10.3 by 10.0, 12.0 its own
    assert not runs["V100"]


def test_a_line_without_a_version_is_not_refused_for_it() -> None:
    assert torch_of("base-oss-nvidia-driver-gpu-ubuntu-24.04") == ""
    assert judge("g6.xlarge", "base-oss-nvidia-driver-gpu-ubuntu-24.04").unproven
