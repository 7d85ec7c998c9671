"""EFS for nodes: whether an instance may mount a file system, by network, role and the file system's own
policy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainer.rehearsal.account import REGION, Principal
from trainer.rehearsal.world import AwsError, Instance

if TYPE_CHECKING:
    from tests.aws.account import CheckedAccount

NFS_PORT = 2049
ACTIONS = ("elasticfilesystem:ClientMount", "elasticfilesystem:ClientWrite")


def check_mount(
    cloud: CheckedAccount, instance: Instance, principal: Principal, file_system: str, access_point: str
) -> None:
    """Raise AwsError where the network or the role does not let an instance mount a file system."""
    if not _reaches(cloud, instance, file_system):
        raise AwsError(
            "ConnectionTimedOut",
            f"{instance.id} reaches no mount target of {file_system} on port {NFS_PORT}.",
            504,
        )
    where = f"arn:aws:elasticfilesystem:{REGION}:{cloud.account}"
    context = {
        "elasticfilesystem:accesspointarn": f"{where}:access-point/{access_point}",
        "elasticfilesystem:accessedviamounttarget": "true",
    }
    for action in ACTIONS:
        cloud.demand(principal, "elasticfilesystem", action, f"{where}:file-system/{file_system}", **context)


def _reaches(cloud: CheckedAccount, instance: Instance, file_system: str) -> bool:
    """Return whether NFS passes from the instance's groups to a mount target in its zone, by the rules of
    both.
    """
    own = {group["GroupId"] for group in instance.description["SecurityGroups"]}
    for target in cloud.moto("efs", "DescribeMountTargets", {"FileSystemId": file_system})["MountTargets"]:
        if target["AvailabilityZoneName"] != instance.pool.availability_zone:
            continue
        asked = {"MountTargetId": target["MountTargetId"]}
        theirs = set(cloud.moto("efs", "DescribeMountTargetSecurityGroups", asked)["SecurityGroups"])
        if _allows(cloud, theirs, "IpPermissions", own) and _allows(
            cloud, own, "IpPermissionsEgress", theirs
        ):
            return True
    return False


def _allows(cloud: CheckedAccount, groups: set[str], direction: str, others: set[str]) -> bool:
    """Return whether a rule of these groups lets NFS through from, or to, one of the others."""
    described = cloud.moto("ec2", "DescribeSecurityGroups", {"GroupIds": sorted(groups)})["SecurityGroups"]
    rules: list[dict[str, Any]] = [rule for group in described for rule in group[direction]]
    return any(
        rule["IpProtocol"] in ("tcp", "-1")
        and rule.get("FromPort", NFS_PORT) <= NFS_PORT <= rule.get("ToPort", NFS_PORT)
        and {pair["GroupId"] for pair in rule.get("UserIdGroupPairs", [])} & others
        for rule in rules
    )
