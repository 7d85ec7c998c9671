"""Doctor's check of the file system of the storage mode `efs-cache`: present, encrypted, and mountable from
every zone.
"""

from __future__ import annotations

from botocore.exceptions import ClientError

from trainer.aws.access import Access, error_code
from trainer.aws.stack_outputs import StackOutputs
from trainer.base.errors import ConfigError
from trainer.machines.storage import EFS_USD_PER_GB_MONTH, GB

_AGAIN = "Run pulumi up --refresh, which restores it. Until then runs read S3."


def cache(access: Access, outputs: StackOutputs) -> str:
    """Return the cache's size and monthly cost. Raises ConfigError if nodes of some zone can't mount it."""
    efs, name = access.client("efs"), outputs.file_system
    try:
        (files,) = efs.describe_file_systems(FileSystemId=name)["FileSystems"]
        targets = efs.describe_mount_targets(FileSystemId=name)["MountTargets"]
    except ClientError as error:
        if error_code(error) != "FileSystemNotFound":
            raise
        raise ConfigError(
            f"the cache {name} is gone", why="the stack's outputs name it", do=_AGAIN
        ) from error
    if files["LifeCycleState"] != "available" or not files["Encrypted"]:
        state = files["LifeCycleState"] if files["Encrypted"] else "not encrypted"
        raise ConfigError(
            f"the cache {name} is {state}", why="nodes mount one that is available and encrypted", do=_AGAIN
        )
    mounted = {target["SubnetId"] for target in targets if target["LifeCycleState"] == "available"}
    if missing := sorted(zone for zone, subnet in outputs.subnets.items() if subnet not in mounted):
        why = "nodes of that zone can't reach it"
        raise ConfigError(f"the cache {name} has no mount target in {', '.join(missing)}", why=why, do=_AGAIN)
    size = files["SizeInBytes"]["Value"] / GB
    return f"{size:.2f} GB, ${size * EFS_USD_PER_GB_MONTH:.2f} a month at the most"
