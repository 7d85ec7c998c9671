"""The shared cache, if `storage` has one: an encrypted EFS file system that only training instances mount.

It holds nothing that S3 does not, and goes with the stack. What an instance reads there it checks
(trainer/node/cache.py). The network (infra/network.py) has the security group of its mount targets.
"""

from __future__ import annotations

import json

import pulumi
import pulumi_aws as aws

from infra import policies
from infra.identity import ServiceRole
from infra.network import Network
from infra.stack import Component, Stack

OWNER = 1000  # user and group that the access point gives every caller


class EfsCache(Component):
    """The file system, a mount target in every zone, one access point, and the instance role's right to use
    it.
    """

    file_system_id: pulumi.Output[str]
    source: pulumi.Output[str]  # "<file system>:<access point>", which bootstrap.sh mounts

    def __init__(
        self,
        name: str,
        stack: Stack,
        *,
        throughput: str,  # elastic or bursting
        network: Network,
        instance_role: ServiceRole,
    ) -> None:
        super().__init__(name, stack)
        own_name = {"Name": f"{stack.prefix}-cache"}
        files = aws.efs.FileSystem(
            name,
            encrypted=True,
            kms_key_id=stack.kms_key or None,
            performance_mode="generalPurpose",
            throughput_mode=throughput,
            lifecycle_policies=lifecycle(throughput),
            tags=own_name,
            opts=self.child,
        )
        # Whoever comes through it is OWNER below its folder, whoever it is on its own machine.
        point = aws.efs.AccessPoint(
            name,
            file_system_id=files.id,
            posix_user={"uid": OWNER, "gid": OWNER},
            root_directory={
                "path": "/cache",
                "creation_info": {"owner_uid": OWNER, "owner_gid": OWNER, "permissions": "0700"},
            },
            tags=own_name,
            opts=self.child,
        )
        targets = [
            aws.efs.MountTarget(
                f"{name}-{zone}",
                file_system_id=files.id,
                subnet_id=subnet,
                security_groups=[network.file_system_group_id],
                opts=self.child,
            )
            for zone, subnet in network.subnet_ids.items()
        ]
        arns = pulumi.Output.all(file_system=files.arn, access_point=point.arn)
        closed = aws.efs.FileSystemPolicy(
            name,
            file_system_id=files.id,
            policy=arns.apply(lambda known: json.dumps(policies.file_system(**known))),
            opts=self.child,
        )
        allowed = aws.iam.RolePolicy(
            name,
            name=name,
            role=instance_role.role_name,
            policy=arns.apply(lambda known: json.dumps(policies.use_cache(**known))),
            opts=self.child,
        )
        self.file_system_id = files.id
        # Through all of them: a template that names the file system exists once it can be mounted.
        mounted = (target.id for target in targets)
        ready = pulumi.Output.all(files.id, point.id, closed.id, allowed.id, *mounted)
        self.source = ready.apply(lambda ids: f"{ids[0]}:{ids[1]}")
        self.register_outputs({"file_system_id": self.file_system_id, "source": self.source})


def lifecycle(throughput: str) -> list[aws.efs.FileSystemLifecyclePolicyArgs]:
    """Return what EFS moves to cheaper storage, and back when it is read. Archive needs elastic
    throughput.
    """
    policy = aws.efs.FileSystemLifecyclePolicyArgs
    archive = [policy(transition_to_archive="AFTER_90_DAYS")] if throughput == "elastic" else []
    return [
        policy(transition_to_ia="AFTER_30_DAYS"),
        *archive,
        policy(transition_to_primary_storage_class="AFTER_1_ACCESS"),
    ]
