"""What is left of a stack that was taken down, and that the next `pulumi up` finds nothing in its way.

The embedded AWS has no `pulumi destroy`: each call that made something is answered by the one that deletes
it, in reverse order.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from botocore import xform_name

from tests.infra.pairs import RETRAINS
from tests.infra.program import run_program
from trainer.aws.access import Access
from trainer.aws.stack_outputs import StackOutputs, image_log
from trainer.base.errors import ConfigError
from trainer.rehearsal import pulumi_apply
from trainer.rehearsal.applied_program import AppliedProgram, RecordedCall
from trainer.rehearsal.server import EmbeddedAws

CONFIG = {
    "retrains": json.dumps(RETRAINS),
    "image_pipeline": "g4dn.xlarge",
    "account_budget": "100",
    "notify_email": "ops@example.com",
    "attach": "ssm",
}
# The call that made something -> the one that deletes it, and the members by which both name it.
DELETES = {
    "CreateRole": ("DeleteRole", "RoleName"),
    "PutRolePolicy": ("DeleteRolePolicy", "RoleName", "PolicyName"),
    "CreateInstanceProfile": ("DeleteInstanceProfile", "InstanceProfileName"),
    "AddRoleToInstanceProfile": ("RemoveRoleFromInstanceProfile", "InstanceProfileName", "RoleName"),
    "CreateLaunchTemplate": ("DeleteLaunchTemplate", "LaunchTemplateName"),
    "CreateLogGroup": ("DeleteLogGroup", "logGroupName"),
    "CreateSchedule": ("DeleteSchedule", "Name", "GroupName"),
    "PutRule": ("DeleteRule", "Name"),
    "PutParameter": ("DeleteParameter", "Name"),
}
NO_DELETE_HERE = {"CreateFunction", "CreateScheduleGroup"}  # of the embedded AWS: moto is asked
# Parts and settings of something else, which go with it.
PARTS = {
    *("PutRetentionPolicy", "PutFunctionEventInvokeConfig", "AddPermission", "Subscribe"),
    *("ModifySubnetAttribute", "ModifyVpcAttribute", "AssociateRouteTable", "AttachInternetGateway"),
    *("AuthorizeSecurityGroupEgress", "RevokeSecurityGroupEgress", "CreateRoute"),
}
# What AWS names itself, or names by the VPC that it lies in.
NAMED_BY_AWS = {
    *("CreateVpc", "CreateSubnet", "CreateInternetGateway", "CreateRouteTable", "CreateSecurityGroup"),
    "CreateVpcEndpoint",
}


@pytest.fixture(scope="module")
def taken_down(aws_server: EmbeddedAws, fork_server: Path) -> tuple[Access, AppliedProgram]:
    """An account in which a stack with all that has a name was applied, used, and taken down."""
    access = aws_server.account()
    applied = pulumi_apply.apply(access, config=CONFIG, module="tests.aws.pulumi_apply", server=fork_server)
    s3, bucket = access.client("s3"), applied.outputs["bucket"]
    s3.put_object(Bucket=bucket, Key="models/production/m.safetensors", Body=b"m")
    for call in reversed(applied.calls):
        take_down(access, applied, call)
    cloud = aws_server.cloud(access)
    for name in list(cloud.functions):
        cloud.moto("lambda", "DeleteFunction", {"FunctionName": name})
        del cloud.functions[name]
    for group in ("mayfly-dev", "mayfly-dev-retrains"):
        cloud.moto("scheduler", "DeleteScheduleGroup", {"Name": group})
    return access, applied


def take_down(access: Access, applied: AppliedProgram, call: RecordedCall) -> None:
    """Undo one call of an application, as `pulumi destroy --exclude-protected` does. S3 keeps all."""
    client, given, name = access.client(call.service), call.params, call.operation
    if (
        name in PARTS | NAMED_BY_AWS | NO_DELETE_HERE
        or call.service in ("s3", "imagebuilder")
        or name.startswith("Describe")
    ):
        return
    if name in DELETES:
        operation, *members = DELETES[name]
        getattr(client, xform_name(operation))(**{member: given[member] for member in members})
    elif name == "CreatePolicy":
        client.delete_policy(PolicyArn=f"arn:aws:iam::{applied.account}:policy/{given['PolicyName']}")
    elif name == "PutTargets":
        client.remove_targets(Rule=given["Rule"], Ids=[one["Id"] for one in given["Targets"]])
    elif name == "PutMetricAlarm":
        client.delete_alarms(AlarmNames=[given["AlarmName"]])
    elif name == "CreateQueue":
        client.delete_queue(QueueUrl=client.get_queue_url(QueueName=given["QueueName"])["QueueUrl"])
    elif name == "CreateTopic":
        client.delete_topic(TopicArn=f"arn:aws:sns:us-east-1:{applied.account}:{given['Name']}")
    elif name == "CreateBudget":
        client.delete_budget(AccountId=given["AccountId"], BudgetName=given["Budget"]["BudgetName"])
    else:
        assert name.startswith("Get"), f"{call.service}:{name}: how does it go?"


def named(outputs: dict[str, Any]) -> StackOutputs:
    return StackOutputs(**{name: told for name, told in outputs.items() if not name.endswith("_policy_arn")})


@pytest.mark.nightly
def test_up_after_down_makes_the_stack_around_its_bucket(
    taken_down: tuple[Access, AppliedProgram], fork_server: Path
) -> None:
    """Every name is free again but the bucket's, which is in Pulumi's state."""
    access, before = taken_down
    with pytest.raises(access.client("ssm").exceptions.ParameterNotFound):
        access.client("ssm").get_parameter(Name="/mayfly/mayfly/dev")
    after = pulumi_apply.apply(access, config=CONFIG, module="tests.aws.pulumi_apply", server=fork_server)
    assert after.outputs["bucket"] == before.outputs["bucket"]
    assert after.outputs["launch_template"] != before.outputs["launch_template"]
    model = {"Bucket": after.outputs["bucket"], "Key": "models/production/m.safetensors"}
    assert access.client("s3").get_object(**model)["Body"].read() == b"m"


@pytest.mark.nightly
def test_the_log_of_a_build_under_way_ends_an_up_that_lacks_it(
    aws_server: EmbeddedAws, fork_server: Path
) -> None:
    """Image Builder's own role makes it again after the stack is gone: down prints the line that imports it."""
    access = aws_server.account()
    log = image_log("mayfly", "dev", run_program(CONFIG).outputs["image_line"])
    access.client("logs").create_log_group(logGroupName=log)
    with pytest.raises(ConfigError, match=r"logGroup:LogGroup 'oss.*-builds'.*ResourceAlreadyExists"):
        pulumi_apply.apply(access, config=CONFIG, module="tests.aws.pulumi_apply", server=fork_server)


def test_what_stays_can_be_imported_under_its_name() -> None:
    """`pulumi import` gives no parent; the program takes such a resource for its own by an alias."""
    stack = run_program(CONFIG)
    for resource_type, name, identifier in named(stack.outputs).left_behind:
        (made,) = [one for one in stack.requests if (one.type, one.name) == (resource_type, name)]
        assert any(alias.spec.noParent for alias in made.aliases), name
        own = stack.inputs(resource_type, name)
        assert identifier in (own.get("bucket"), own.get("name"))


def test_all_that_outlives_the_stack_is_protected_or_importable() -> None:
    stack = run_program(CONFIG)
    kept = {(one.type, one.name) for one in stack.requests if one.retainOnDelete}
    buckets = {one for one in kept if one[0] == "aws:s3/bucket:Bucket"}
    importable = {(kind, name) for kind, name, _ in named(stack.outputs).left_behind}
    assert buckets <= importable
    # The others are settings of it, which `pulumi up` puts again as they are.
    assert all(kind.startswith("aws:s3/bucket") for kind, _ in kept)
