"""EFS for nodes: whether an instance may mount a file system, by network and role, and the folder that stands
in for it.

The file system's own policy is stored but not evaluated. The stub of `mount` demands TLS and the access
point.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from trainer.rehearsal.account import REGION, EmbeddedAccount, Principal
from trainer.rehearsal.authorization import demand
from trainer.rehearsal.iam_policies import Authorization
from trainer.rehearsal.world import AwsError, Instance

NFS_PORT = 2049
ACTIONS = ("elasticfilesystem:ClientMount", "elasticfilesystem:ClientWrite")


def mount(
    cloud: EmbeddedAccount, instance: Instance, principal: Principal, file_system: str, access_point: str
) -> Path:
    """Return the folder of an access point, made if need be. Raises AwsError where AWS would not let the
    instance mount it.
    """
    points = cloud.moto("efs", "DescribeAccessPoints", {"AccessPointId": access_point})["AccessPoints"]
    if not any(point["FileSystemId"] == file_system for point in points):
        raise AwsError("AccessPointNotFound", f"{file_system} has no access point {access_point}.", 404)
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
        asked = Authorization(
            action=action, resource=f"{where}:file-system/{file_system}", context=dict(context)
        )
        demand(cloud, principal, "elasticfilesystem", asked)
    (described,) = cloud.moto("efs", "DescribeFileSystems", {"FileSystemId": file_system})["FileSystems"]
    # Named by its token, which the next session's file system shares: as on AWS, it outlives the command.
    token = hashlib.sha256(described["CreationToken"].encode()).hexdigest()[:16]
    folder = cloud.root / "efs" / cloud.account / token
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


def _reaches(cloud: EmbeddedAccount, instance: Instance, file_system: str) -> bool:
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


def _allows(cloud: EmbeddedAccount, groups: set[str], direction: str, others: set[str]) -> bool:
    """Return whether a rule of these groups lets NFS through from, or to, one of the others."""
    described = cloud.moto("ec2", "DescribeSecurityGroups", {"GroupIds": sorted(groups)})["SecurityGroups"]
    rules: list[dict[str, Any]] = [rule for group in described for rule in group[direction]]
    return any(
        rule["IpProtocol"] in ("tcp", "-1")
        and rule.get("FromPort", NFS_PORT) <= NFS_PORT <= rule.get("ToPort", NFS_PORT)
        and {pair["GroupId"] for pair in rule.get("UserIdGroupPairs", [])} & others
        for rule in rules
    )
