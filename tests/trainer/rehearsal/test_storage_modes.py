"""The program applied with a cache and a key: what the account holds then, and for whom."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from infra import policies
from tests.aws.account import CheckedAccount
from tests.aws.file_systems import ACTIONS
from tests.iam import listed
from tests.retrains import CONFIG, KEY
from trainer.aws.access import Access
from trainer.aws.stack import read_stack
from trainer.base.errors import ConfigError
from trainer.launch.health import stack_checks
from trainer.rehearsal.account import Principal
from trainer.rehearsal.world import AwsError

if TYPE_CHECKING:
    from trainer.rehearsal.server import EmbeddedAws

pytestmark = pytest.mark.slow
PREFIX = "mayfly-dev-us-east-1"


@pytest.fixture(scope="module")
def applied(aws_server: EmbeddedAws) -> tuple[Access, dict[str, Any]]:
    access = aws_server.account()
    return access, aws_server.apply_program(access, CONFIG)


def own_tags(tags: list[dict[str, str]]) -> bool:
    given = {tag.get("Key") or tag["TagKey"]: tag.get("Value") or tag["TagValue"] for tag in tags}
    return {"project": "mayfly", "stack": "dev", "owner": "mayfly"}.items() <= given.items()


def statements(access: Access, role: str, policy: str) -> list[dict[str, Any]]:
    found = access.client("iam").get_role_policy(RoleName=f"{PREFIX}-{role}", PolicyName=policy)
    return list(found["PolicyDocument"]["Statement"])


def groups_of(efs: Any, target: dict[str, Any]) -> list[str]:
    """Return the security groups of a mount target."""
    described = efs.describe_mount_target_security_groups(MountTargetId=target["MountTargetId"])
    return list(described["SecurityGroups"])


def test_the_cache_is_encrypted_closed_and_in_every_zone(
    applied: tuple[Access, Any],
) -> None:
    access, outputs = applied
    efs, ec2 = access.client("efs"), access.client("ec2")
    (files,) = efs.describe_file_systems()["FileSystems"]
    assert files["FileSystemId"] == outputs["file_system"] and own_tags(files["Tags"])
    assert files["Encrypted"] and files["KmsKeyId"] == KEY and files["ThroughputMode"] == "elastic"
    policies = efs.describe_lifecycle_configuration(FileSystemId=outputs["file_system"])["LifecyclePolicies"]
    assert {"TransitionToIA": "AFTER_30_DAYS"} in policies
    assert {"TransitionToArchive": "AFTER_90_DAYS"} in policies
    (point,) = efs.describe_access_points(FileSystemId=outputs["file_system"])["AccessPoints"]
    assert point["PosixUser"]["Uid"] and own_tags(point["Tags"])
    assert point["RootDirectory"]["Path"] == "/cache"
    targets = efs.describe_mount_targets(FileSystemId=outputs["file_system"])["MountTargets"]
    assert {target["SubnetId"] for target in targets} == set(outputs["subnets"].values())
    groups = {group for target in targets for group in groups_of(efs, target)}
    (group,) = ec2.describe_security_groups(GroupIds=sorted(groups))["SecurityGroups"]
    (way_in,) = group["IpPermissions"]
    assert (way_in["FromPort"], way_in["ToPort"], way_in["IpRanges"]) == (2049, 2049, [])
    assert [pair["GroupId"] for pair in way_in["UserIdGroupPairs"]] == [outputs["security_group"]]
    assert group["IpPermissionsEgress"] == [] and own_tags(group["Tags"])
    (instances,) = ec2.describe_security_groups(GroupIds=[outputs["security_group"]])["SecurityGroups"]
    assert instances["IpPermissions"] == []
    assert {rule["FromPort"] for rule in instances["IpPermissionsEgress"]} == {443, 2049}


@pytest.mark.parametrize("role", ["instance", "everything"])
def test_the_file_system_wants_tls_and_its_access_point(
    aws_server: EmbeddedAws, applied: tuple[Access, Any], role: str
) -> None:
    access, outputs = applied
    efs, cloud = access.client("efs"), aws_server.cloud(access)
    assert isinstance(cloud, CheckedAccount)
    (point,) = efs.describe_access_points(FileSystemId=outputs["file_system"])["AccessPoints"]
    own, others = point["AccessPointArn"], f"{point['AccessPointArn']}0"
    where = own.replace(f"access-point/{point['AccessPointId']}", f"file-system/{outputs['file_system']}")

    def mounts(through: str = own, *, over_tls: bool = True) -> str:
        """Mount and write as EFS asks IAM; return who refused it."""
        cloud.over_tls = over_tls
        context = {"elasticfilesystem:accesspointarn": through} if through else {}
        try:
            for action in ACTIONS:
                cloud.demand(caller_of(access, role), "elasticfilesystem", action, where, **context)
        except AwsError as error:
            return error.message.rpartition(" in a")[2].strip()
        finally:
            cloud.over_tls = True
        return ""

    assert mounts() == ""
    for refused in (mounts(over_tls=False), mounts(others), mounts("")):
        assert refused == "resource-based policy", "whatever the caller's own policies say"


def caller_of(access: Access, role: str) -> Principal:
    """Return a caller with the instances' role, or with one of its own that may do everything."""
    if role == "instance":
        return Principal(kind="NODE", name="i-1", role=f"{PREFIX}-instance")
    iam, trust = access.client("iam"), json.dumps(policies.trust("ec2.amazonaws.com"))
    with suppress(iam.exceptions.EntityAlreadyExistsException):
        iam.create_role(RoleName=role, AssumeRolePolicyDocument=trust)
    own = json.dumps(policies.document(policies.allow("All", "*", "*")))
    iam.put_role_policy(RoleName=role, PolicyName="own", PolicyDocument=own)
    return Principal(kind="NODE", name="i-2", role=role)


def test_the_key_encrypts_the_bucket_through_s3_alone(
    applied: tuple[Access, Any],
) -> None:
    access, outputs = applied
    encryption = access.client("s3").get_bucket_encryption(Bucket=outputs["bucket"])
    (rule,) = encryption["ServerSideEncryptionConfiguration"]["Rules"]
    assert rule["BucketKeyEnabled"]
    assert rule["ApplyServerSideEncryptionByDefault"]["KMSMasterKeyID"] == KEY
    both = {"kms:Decrypt", "kms:GenerateDataKey"}
    for role, actions in (("instance", both), ("sweeper", {"kms:Decrypt"})):
        (use,) = (one for one in statements(access, role, role) if one["Sid"] == "UseKey")
        assert set(listed(use["Action"])) == actions and use["Resource"] == KEY
        assert use["Condition"] == {"StringEquals": {"kms:ViaService": "s3.us-east-1.amazonaws.com"}}


def test_doctor_names_the_zones_that_can_not_mount_the_cache(applied: tuple[Access, Any]) -> None:
    access, _ = applied
    outputs = read_stack(access, stack="dev")
    checks, efs = stack_checks(access, outputs), access.client("efs")
    assert "cache" not in stack_checks(access, replace(outputs, file_system=""))
    assert checks["cache"]().endswith("a month at the most")
    target = efs.describe_mount_targets(FileSystemId=outputs.file_system)["MountTargets"][0]
    groups = groups_of(efs, target)
    efs.delete_mount_target(MountTargetId=target["MountTargetId"])
    with pytest.raises(ConfigError, match=f"no mount target in {target['AvailabilityZoneName']}"):
        checks["cache"]()
    place = {"SubnetId": target["SubnetId"], "SecurityGroups": groups}
    efs.create_mount_target(FileSystemId=outputs.file_system, **place)
    with pytest.raises(ConfigError, match="fs-00000000 is gone"):
        stack_checks(access, replace(outputs, file_system="fs-00000000"))["cache"]()
