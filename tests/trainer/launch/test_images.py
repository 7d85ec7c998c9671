"""Types of a launch against the stack's image line."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trainer.base.errors import ConfigError
from trainer.launch.images import refuse_unfit
from trainer.machines.instances import InstanceType, instance_type

LINE = "oss-nvidia-driver-gpu-pytorch-2.13-ubuntu-26.04"
OLD = LINE.replace("2.13", "2.12")


def types(*names: str) -> list[InstanceType]:
    return [instance_type(name) for name in names]


def test_a_type_with_another_cpu_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"g5g.xlarge would not train on this stack \(its CPU is arm64"):
        refuse_unfit(types("g6.xlarge", "g5g.xlarge"), LINE, named=True)


def test_a_line_with_another_torch_is_refused() -> None:
    for named, machines in ((True, types("g6.xlarge")), (False, types("g6.xlarge", "g5.xlarge"))):
        with pytest.raises(ConfigError, match=r"g6.xlarge would not train on this stack .* has torch 2.12"):
            refuse_unfit(machines, OLD, named=named)


def test_a_retired_type_keeps_its_own_refusal() -> None:
    refuse_unfit(types("p3.8xlarge"), LINE, named=True)
    refuse_unfit(types("g6.xlarge", "g7e.2xlarge"), LINE, named=True)
    volta = replace(instance_type("p3.8xlarge"), status="current")
    with pytest.raises(ConfigError, match="driver 580 is the last for its V100"):
        refuse_unfit([volta], LINE, named=True)
