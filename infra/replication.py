"""A replica of candles and models in another region, which S3 keeps up to date: the setting
`replicate_to`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from infra import policies
from infra.encryption import StackKey, StackKeyArgs
from infra.identity import ServiceRole, ServiceRoleArgs
from infra.storage import KeptBucketArgs, ModelStore, keep_bucket, lifecycle_rules

PREFIXES = ("raw/", "models/", "backup/")


@dataclass(frozen=True, kw_only=True)
class ReplicaArgs:
    account: str
    region: str
    to_region: str
    prefix: str
    bucket_name: str
    replica_name: str
    role_name: str
    noncurrent_days: int
    experiment_days: int
    tags: dict[str, str]
    key: pulumi.Input[str] | None = (
        None  # of the bucket; the replica then has a key of its own, since keys belong to a region
    )


class Replica(pulumi.ComponentResource):
    """A bucket in another region, the role by which S3 fills it, and the rules. Deletions are not
    replicated.
    """

    def __init__(
        self, name: str, args: ReplicaArgs, store: ModelStore, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("mayfly:replication:Replica", name, None, opts)
        child, there = pulumi.ResourceOptions(parent=self), {"region": args.to_region}
        key = None
        if args.key is not None:
            alias = f"{args.prefix}-replica"
            key = StackKey(
                "replica",
                StackKeyArgs(account=args.account, alias=alias, tags=args.tags, elsewhere=there),
                child,
            )
        replica, ready = keep_bucket(
            KeptBucketArgs(
                bucket_name=args.replica_name,
                policy=policies.tls_only(args.replica_name),
                lifecycle=lifecycle_rules(
                    noncurrent_days=args.noncurrent_days, experiment_days=args.experiment_days
                ),
                tags=args.tags,
                key=key.arn if key else None,
                prefix="replica-",
                protect=False,
                elsewhere=there,
            ),
            parent=self,
        )
        regions = (args.region, args.to_region)
        role = ServiceRole(
            "replication",
            ServiceRoleArgs(
                role_name=args.role_name,
                description="S3: copy candles and models to another region.",
                trust=policies.trust(
                    "s3.amazonaws.com", {"StringEquals": {"aws:SourceAccount": args.account}}
                ),
                policy=pulumi.Output.all(args.key or "", key.arn if key else "").apply(
                    lambda keys: json.dumps(
                        policies.replication(
                            bucket=args.bucket_name,
                            replica=args.replica_name,
                            prefixes=PREFIXES,
                            keys=keys,
                            regions=regions,
                        )
                    )
                ),
                tags=args.tags,
            ),
            opts=child,
        )
        aws.s3.BucketReplicationConfig(
            name,
            bucket=store.bucket,
            role=role.arn,
            rules=[
                _rule(number, prefix, replica.arn, key.arn if key else None)
                for number, prefix in enumerate(PREFIXES, start=1)
            ],
            opts=pulumi.ResourceOptions(parent=self, depends_on=[ready, store.ready]),
        )
        self.register_outputs({})


def other_region(region: str, own: str) -> str:
    """Return the region of the replica. Raises pulumi.RunError for the stack's own."""
    if region == own:
        raise pulumi.RunError(
            f"Setting 'replicate_to' is '{region}', the stack's own region; it must be another one."
        )
    return region


def _rule(
    number: int, prefix: str, replica: pulumi.Input[str], key: pulumi.Input[str] | None
) -> aws.s3.BucketReplicationConfigRuleArgs:
    encrypted = aws.s3.BucketReplicationConfigRuleSourceSelectionCriteriaArgs(
        sse_kms_encrypted_objects=aws.s3.BucketReplicationConfigRuleSourceSelectionCriteriaSseKmsEncryptedObjectsArgs(
            status="Enabled"
        )
    )
    by_key = (
        aws.s3.BucketReplicationConfigRuleDestinationEncryptionConfigurationArgs(replica_kms_key_id=key)
        if key
        else None
    )
    return aws.s3.BucketReplicationConfigRuleArgs(
        id=prefix.rstrip("/"),
        priority=number,
        status="Enabled",
        filter=aws.s3.BucketReplicationConfigRuleFilterArgs(prefix=prefix),
        delete_marker_replication=aws.s3.BucketReplicationConfigRuleDeleteMarkerReplicationArgs(
            status="Disabled"
        ),
        source_selection_criteria=encrypted if key else None,
        destination=aws.s3.BucketReplicationConfigRuleDestinationArgs(
            bucket=replica, storage_class="STANDARD_IA", encryption_configuration=by_key
        ),
    )
