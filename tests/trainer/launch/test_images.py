"""Types of a launch against the stack's image lines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from trainer.aws.stack_outputs import FORMAT, StackOutputs
from trainer.base.errors import ConfigError, UsageError
from trainer.launch.images import line_for, refuse_unfit, verdict_on
from trainer.machines.instances import InstanceType, instance_type

X86, ARM = (
    "oss-nvidia-driver-gpu-pytorch-2.13-ubuntu-26.04",
    "oss-nvidia-driver-gpu-pytorch-2.13-ubuntu-26.04-arm64",
)
OLD = X86.replace("2.13", "2.12")


def outputs(*lines: str) -> StackOutputs:
    named: dict[str, Any] = {line: f"/aws/{line}" for line in lines}
    texts = dict.fromkeys(
        ("project", "stack", "owner", "region", "bucket", "security_group", "schedule_group"), "x"
    )
    texts |= dict.fromkeys(
        (
            "instance_role_id",
            "prepare_role_id",
            "prepare_type",
            "scheduler_role_arn",
            "sweeper_arn",
            "control_arn",
        ),
        "x",
    )
    return StackOutputs(
        format=FORMAT,
        **texts,
        launch_templates=named,
        images=named,
        subnets={},
        prepare_templates=named,
        control_types=[],
        retrains=[],
        retrain_format=1,
        max_lifetime_minutes=60,
    )


def types(*names: str) -> list[InstanceType]:
    return [instance_type(name) for name in names]


def test_a_launch_boots_the_line_of_its_types_architecture() -> None:
    both = outputs(X86, ARM)
    assert line_for(types("g6.xlarge", "g5.12xlarge"), both) == X86
    assert line_for(types("g5g.xlarge"), both) == ARM
    assert verdict_on(
        instance_type("g5g.xlarge"), ARM
    ).unproven  # nobody says that the image's torch has code for it


def test_types_of_two_architectures_are_refused() -> None:
    with pytest.raises(
        UsageError, match=r"g5g.xlarge \(arm64\) and g6.xlarge \(x86_64\) can't be in one launch"
    ):
        line_for(types("g6.xlarge", "g5g.xlarge"), outputs(X86, ARM))


def test_a_stack_without_a_line_of_the_architecture_is_named_with_the_setting() -> None:
    with pytest.raises(
        ConfigError, match=r"no image for g5g.xlarge \(it is arm64.*pulumi config set image_line_arm64 LINE"
    ):
        refuse_unfit(types("g5g.xlarge"), outputs(X86), named=True)


def test_a_line_with_another_torch_is_refused_before_a_machine_would_find_out() -> None:
    for named, machines in ((True, types("g6.xlarge")), (False, types("g6.xlarge", "g5.xlarge"))):
        with pytest.raises(ConfigError, match=r"g6.xlarge would not train on this stack .* has torch 2.12"):
            refuse_unfit(machines, outputs(OLD), named=named)


def test_a_retired_type_keeps_its_own_refusal_and_a_type_that_works_is_taken() -> None:
    refuse_unfit(types("p3.8xlarge"), outputs(X86), named=True)
    refuse_unfit(types("g6.xlarge", "g7e.2xlarge"), outputs(X86), named=True)
    volta = replace(instance_type("p3.8xlarge"), status="current")
    with pytest.raises(ConfigError, match="driver 580 is the last for its V100"):
        refuse_unfit([volta], outputs(X86), named=True)
