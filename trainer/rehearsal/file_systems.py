"""EFS for nodes: the folder that stands in for a file system's access point.

The stub of `mount` demands TLS and the access point. Permissions and the network are not checked here.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from trainer.rehearsal.account import EmbeddedAccount, Principal
from trainer.rehearsal.world import AwsError, Instance


def mount(
    cloud: EmbeddedAccount, instance: Instance, principal: Principal, file_system: str, access_point: str
) -> Path:
    """Return the folder of an access point, made if need be. Raises AwsError where AWS would not let the
    instance mount it.
    """
    points = cloud.moto("efs", "DescribeAccessPoints", {"AccessPointId": access_point})["AccessPoints"]
    if not any(point["FileSystemId"] == file_system for point in points):
        raise AwsError("AccessPointNotFound", f"{file_system} has no access point {access_point}.", 404)
    cloud.check_mount(instance, principal, file_system, access_point)
    (described,) = cloud.moto("efs", "DescribeFileSystems", {"FileSystemId": file_system})["FileSystems"]
    # Named by its token, which the next session's file system shares: as on AWS, it outlives the command.
    token = hashlib.sha256(described["CreationToken"].encode()).hexdigest()[:16]
    folder = cloud.root / "efs" / cloud.account / token
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder
