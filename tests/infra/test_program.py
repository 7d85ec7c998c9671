"""The program as a whole: what it exports, what it tags, and that nothing it names is left to chance."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import TYPE_CHECKING

from trainer.aws.stack_outputs import PARAMETER_LIMIT_BYTES, StackOutputs, parameter_name

if TYPE_CHECKING:
    from tests.infra.program import Recorded


def test_the_parameter_holds_exactly_the_stack_outputs(program: Recorded) -> None:
    parameter = program.inputs("aws:ssm/parameter:Parameter")
    outputs = StackOutputs.from_json(parameter["insecureValue"])
    assert parameter["name"] == parameter_name("mayfly", "dev") == "/mayfly/mayfly/dev"
    assert len(parameter["insecureValue"]) < PARAMETER_LIMIT_BYTES
    assert outputs.bucket == "mayfly-dev-123456789012-eu-west-1"
    assert outputs.region == "eu-west-1"
    assert sorted(outputs.subnets) == ["eu-west-1a", "eu-west-1b", "eu-west-1c"]
    line = f"/aws/service/deeplearning/ami/x86_64/{outputs.image_line}/latest/ami-id"
    assert outputs.image_parameter == line
    assert outputs.max_lifetime_minutes == 720


def test_the_parameter_has_room_for_six_zones(program: Recorded) -> None:
    outputs = json.loads(program.inputs("aws:ssm/parameter:Parameter")["insecureValue"])
    outputs["subnets"] = {f"eu-west-1{letter}": "subnet-0123456789abcdef0" for letter in "abcdef"}
    StackOutputs(**outputs).to_json()


def test_every_output_and_the_launcher_policy_are_exported(program: Recorded) -> None:
    policies = {"launcher_policy_arn", "prune_policy_arn"}
    assert set(program.outputs) == {*(field.name for field in fields(StackOutputs)), *policies}


def test_launch_templates_are_deleted_before_the_safety_net(program: Recorded) -> None:
    schedules = ("aws:scheduler/schedule:Schedule", "aws:scheduler/scheduleGroup:ScheduleGroup")
    launching = ("aws:ec2/launchTemplate:LaunchTemplate", "aws:ec2/subnet:Subnet", "aws:ec2/vpc:Vpc")
    for last in (*schedules, "aws:lambda/function:Function"):
        for first in ("aws:ssm/parameter:Parameter", *launching, "aws:ec2/securityGroup:SecurityGroup"):
            assert program.outlives(last, first), (last, first)


def test_no_instance_and_no_fleet_is_part_of_the_stack(program: Recorded) -> None:
    types = {resource.typ for resource in program.resources}
    machines = ("instance:Instance", "fleet:Fleet", "spotInstanceRequest:SpotInstanceRequest")
    assert not {f"aws:ec2/{machine}" for machine in machines} & types
