from __future__ import annotations

import dataclasses

import pytest

from trainer.aws.place import ACCOUNT
from trainer.aws.stack import read_stack
from trainer.base.errors import ConfigError


def test_the_stack_is_read_from_its_one_parameter(applied):
    outputs = read_stack(applied, stack="dev")
    assert (outputs.stack, outputs.region) == ("dev", "us-east-1")
    assert outputs.bucket


def test_a_stack_of_another_region_names_the_region(applied):
    far = dataclasses.replace(read_stack(applied, stack="dev"), region="eu-west-1")
    applied.client("ssm").put_parameter(Name="/mayfly/mayfly/far", Value=far.to_json(), Type="String")
    with pytest.raises(
        ConfigError, match=r"from us-east-1 \(its bucket is in eu-west-1\). Set AWS_REGION=eu-west-1"
    ):
        read_stack(applied, stack="far")


def test_a_rehearsal_is_not_advised_to_be_one(applied):
    with pytest.raises(ConfigError, match="no stack 'prod' .* A rehearsal has the stack dev alone"):
        read_stack(applied, stack="prod")


def test_outputs_of_another_version_say_what_they_lack(applied):
    applied.client("ssm").put_parameter(Name="/mayfly/mayfly/old", Value='{"format": 1}', Type="String")
    with pytest.raises(
        ConfigError,
        match=r"outputs of stack 'old' don't fit \(stack outputs have format 1.* --rehearse --dry-run",
    ):
        read_stack(applied, stack="old")
    with pytest.raises(ConfigError, match=r"Run pulumi up --stack old\."):
        read_stack(dataclasses.replace(applied, place=ACCOUNT), stack="old")


def test_outputs_name_the_instance_role_by_its_unique_id(applied):
    outputs = read_stack(applied, stack="dev")
    iam, ec2 = applied.client("iam"), applied.client("ec2")
    version = ec2.describe_launch_template_versions(LaunchTemplateId=outputs.launch_template)[
        "LaunchTemplateVersions"
    ][0]
    profile = version["LaunchTemplateData"]["IamInstanceProfile"]["Arn"].rpartition("/")[2]
    (role,) = iam.get_instance_profile(InstanceProfileName=profile)["InstanceProfile"]["Roles"]
    assert outputs.instance_role_id == role["RoleId"]
