"""Lines of images: what is read of each at `up`."""

from __future__ import annotations

import pulumi
import pytest

from infra.image_lines import read_image_lines
from tests.infra.program import Recorded

LINE, ARM = (
    "oss-nvidia-driver-gpu-pytorch-2.13-ubuntu-26.04",
    "oss-nvidia-driver-gpu-pytorch-2.12-ubuntu-24.04",
)


def test_a_line_has_the_root_device_of_its_newest_image(program: Recorded) -> None:
    (line,) = read_image_lines(x86_64=LINE, arm64="")
    assert (line.name, line.architecture, line.root_device) == (LINE, "x86_64", "/dev/x86_64-root")
    assert line.parameter == f"/aws/service/deeplearning/ami/x86_64/{LINE}/latest/ami-id"


def test_a_line_for_arm64_has_a_name_of_its_own_and_comes_second(program: Recorded) -> None:
    """The same line may exist for both architectures, and launches go by the name."""
    first, second = read_image_lines(x86_64=LINE, arm64=LINE)
    assert (first.name, second.name) == (LINE, f"{LINE}-arm64")
    assert (second.architecture, second.root_device) == ("arm64", "/dev/arm64-root")
    assert "/arm64/" in second.parameter


def test_a_line_whose_image_cannot_be_read_names_the_setting(
    program: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(**_: object) -> None:
        raise Exception("ParameterNotFound")

    monkeypatch.setattr("infra.image_lines.aws.ssm.get_parameter", missing)
    with pytest.raises(
        pulumi.RunError, match=r"Setting 'image_line' is 'typo', .*/x86_64/typo/latest/ami-id \(ParameterNotF"
    ):
        read_image_lines(x86_64="typo", arm64="")


def test_an_image_of_another_architecture_is_refused(
    program: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Image:
        architecture, root_device_name = "x86_64", "/dev/sda1"

    monkeypatch.setattr("infra.image_lines.aws.ec2.get_ami", lambda **_: Image)
    with pytest.raises(
        pulumi.RunError, match=f"Setting 'image_line_arm64' is '{ARM}', whose image ami-arm64 is for x86_64"
    ):
        read_image_lines(x86_64=LINE, arm64=ARM)
