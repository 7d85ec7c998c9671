"""The shared cache of the storage mode `efs-cache`: an encrypted EFS file system that only training instances
mount.

It holds nothing that S3 does not, and goes with the stack. What an instance reads there it checks
(trainer/node/cache.py). The two security groups name each other, so that the network (infra/network.py) makes
the file system's group before the instances'.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from infra import policies

NFS_PORT = 2049
OWNER = 1000  # user and group that the access point gives every caller


@dataclass(frozen=True, kw_only=True)
class EfsCacheArgs:
    prefix: str
    throughput: str  # elastic or bursting
    subnet_ids: Mapping[str, pulumi.Input[str]]  # by availability zone
    security_group_id: pulumi.Input[str]
    instance_role: pulumi.Input[str]  # its name
    tags: dict[str, str]
    key: pulumi.Input[str] | None = None  # ARN of a KMS key; None: the account's own for EFS


class EfsCache(pulumi.ComponentResource):
    """The file system, a mount target in every zone, one access point, and the instance role's right to use
    it.
    """

    file_system_id: pulumi.Output[str]
    source: pulumi.Output[str]  # "<file system>:<access point>", which bootstrap.sh mounts

    def __init__(self, name: str, args: EfsCacheArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("mayfly:efs:EfsCache", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        files = aws.efs.FileSystem(
            name,
            creation_token=f"{args.prefix}-cache",
            encrypted=True,
            kms_key_id=args.key,
            performance_mode="generalPurpose",
            throughput_mode=args.throughput,
            lifecycle_policies=lifecycle(args.throughput),
            tags={**args.tags, "Name": f"{args.prefix}-cache"},
            opts=child,
        )
        # Whoever comes through it is OWNER below its folder, whoever it is on its own machine.
        point = aws.efs.AccessPoint(
            name,
            file_system_id=files.id,
            posix_user=aws.efs.AccessPointPosixUserArgs(uid=OWNER, gid=OWNER),
            root_directory=aws.efs.AccessPointRootDirectoryArgs(
                path="/cache",
                creation_info=aws.efs.AccessPointRootDirectoryCreationInfoArgs(
                    owner_uid=OWNER, owner_gid=OWNER, permissions="0700"
                ),
            ),
            tags={**args.tags, "Name": f"{args.prefix}-cache"},
            opts=child,
        )
        targets = [
            aws.efs.MountTarget(
                f"{name}-{zone}",
                file_system_id=files.id,
                subnet_id=subnet,
                security_groups=[args.security_group_id],
                opts=child,
            )
            for zone, subnet in args.subnet_ids.items()
        ]
        arns = pulumi.Output.all(file_system=files.arn, access_point=point.arn)
        closed = aws.efs.FileSystemPolicy(
            name,
            file_system_id=files.id,
            policy=arns.apply(lambda known: json.dumps(policies.file_system(**known))),
            opts=child,
        )
        allowed = aws.iam.RolePolicy(
            name,
            name=name,
            role=args.instance_role,
            policy=arns.apply(lambda known: json.dumps(policies.use_cache(**known))),
            opts=child,
        )
        self.file_system_id = files.id
        # Through all of them: a template that names the file system exists once it can be mounted.
        ready = pulumi.Output.all(
            files.id, point.id, closed.id, allowed.id, *(target.id for target in targets)
        )
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


def file_system_group(
    prefix: str, vpc_id: pulumi.Input[str], tags: dict[str, str], opts: pulumi.ResourceOptions
) -> aws.ec2.SecurityGroup:
    """Make the mount targets' group, without egress."""
    return aws.ec2.SecurityGroup(
        "file-system",
        name=f"{prefix}-file-system",
        description="Mount targets of the cache: NFS in from instances, nothing out.",
        vpc_id=vpc_id,
        egress=[],
        tags={**tags, "Name": f"{prefix}-file-system"},
        opts=opts,
    )


def out_to_file_system(files: aws.ec2.SecurityGroup) -> aws.ec2.SecurityGroupEgressArgs:
    """Return the egress rule from instances to the mount targets."""
    return aws.ec2.SecurityGroupEgressArgs(
        description="The cache",
        protocol="tcp",
        from_port=NFS_PORT,
        to_port=NFS_PORT,
        security_groups=[files.id],
    )


def admit_to_file_system(
    files: aws.ec2.SecurityGroup,
    instances: aws.ec2.SecurityGroup,
    tags: dict[str, str],
    opts: pulumi.ResourceOptions,
) -> None:
    """Admit the instances' group, and nobody else, to the mount targets."""
    aws.vpc.SecurityGroupIngressRule(
        "file-system-from-instances",
        security_group_id=files.id,
        referenced_security_group_id=instances.id,
        description="Training instances",
        ip_protocol="tcp",
        from_port=NFS_PORT,
        to_port=NFS_PORT,
        tags=tags,
        opts=opts,
    )
