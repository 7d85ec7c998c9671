"""The buckets, which outlive the stack, since they hold the models. Their layout is in docs/architecture.md.

The bucket itself and, if set, one for its access logs and a replica in another region.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pulumi
import pulumi_aws as aws

from infra import policies
from infra.settings import Account

Lifecycle = Sequence[aws.s3.BucketLifecycleConfigurationRuleArgs]


@dataclass(frozen=True, kw_only=True)
class ModelStoreArgs:
    bucket_name: str
    noncurrent_days: int
    experiment_days: int
    tags: dict[str, str]
    key: pulumi.Input[str] | None = None  # ARN of the KMS key; None: S3's own


@dataclass(frozen=True, kw_only=True)
class KeptBucketArgs:
    """A permanent bucket: versioned unless it holds logs, encrypted, private, TLS only."""

    bucket_name: str
    policy: policies.Document
    lifecycle: Lifecycle
    tags: Mapping[str, str]
    key: pulumi.Input[str] | None = None
    versioned: bool = True
    prefix: str = ""  # of its resources' names
    protect: bool = True  # whether Pulumi protects it; not for a bucket that a setting can remove
    elsewhere: Mapping[str, Any] = field(default_factory=dict)  # its region, where that is not the stack's


class ModelStore(pulumi.ComponentResource):
    """A versioned, encrypted, private bucket that `pulumi destroy` leaves in the account as it is."""

    bucket: pulumi.Output[str]
    ready: pulumi.Resource  # once it exists, the bucket is versioned and closed

    def __init__(self, name: str, args: ModelStoreArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("mayfly:storage:ModelStore", name, None, opts)
        kept = KeptBucketArgs(
            bucket_name=args.bucket_name,
            policy=policies.tls_only(args.bucket_name),
            lifecycle=lifecycle_rules(
                noncurrent_days=args.noncurrent_days, experiment_days=args.experiment_days
            ),
            tags=args.tags,
            key=args.key,
        )
        bucket, self.ready = keep_bucket(kept, parent=self)
        self.bucket = bucket.bucket
        self.register_outputs({"bucket": self.bucket})


def keep_bucket(args: KeptBucketArgs, *, parent: pulumi.Resource) -> tuple[aws.s3.Bucket, pulumi.Resource]:
    """Make a bucket with its settings; return it with the last of them.

    They are resources too, and stay with it: the provider would suspend versioning as it deletes that one,
    and open the bucket with the others. They change one after another: S3 answers 409 to two changes of a
    bucket's access at once.
    """

    def kept(after: pulumi.Resource | None = None) -> pulumi.ResourceOptions:
        return pulumi.ResourceOptions(
            parent=parent,
            protect=args.protect,
            retain_on_delete=True,
            depends_on=[after] if after is not None else None,
        )

    def named(name: str) -> str:
        return f"{args.prefix}{name}"

    bucket = aws.s3.Bucket(
        named("bucket"),
        bucket=args.bucket_name,
        force_destroy=False,
        tags=args.tags,
        **args.elsewhere,
        opts=kept(),
    )
    last: pulumi.Resource = bucket
    if args.versioned:
        last = aws.s3.BucketVersioning(
            named("versioning"),
            bucket=bucket.id,
            versioning_configuration=aws.s3.BucketVersioningVersioningConfigurationArgs(status="Enabled"),
            **args.elsewhere,
            opts=kept(),
        )
    encryption = aws.s3.BucketServerSideEncryptionConfiguration(
        named("encryption"),
        bucket=bucket.id,
        rules=[_encryption(args.key)],
        **args.elsewhere,
        opts=kept(after=last),
    )
    closed = aws.s3.BucketPublicAccessBlock(
        named("private"),
        bucket=bucket.id,
        block_public_acls=True,
        block_public_policy=True,
        ignore_public_acls=True,
        restrict_public_buckets=True,
        **args.elsewhere,
        opts=kept(after=encryption),
    )
    ownership = aws.s3.BucketOwnershipControls(
        named("ownership"),
        bucket=bucket.id,
        rule=aws.s3.BucketOwnershipControlsRuleArgs(object_ownership="BucketOwnerEnforced"),
        **args.elsewhere,
        opts=kept(after=closed),
    )
    policy = aws.s3.BucketPolicy(
        named("tls-only"),
        bucket=bucket.id,
        policy=json.dumps(args.policy),
        **args.elsewhere,
        opts=kept(after=ownership),
    )
    rules = aws.s3.BucketLifecycleConfiguration(
        named("lifecycle"), bucket=bucket.id, rules=args.lifecycle, **args.elsewhere, opts=kept(after=policy)
    )
    return bucket, rules


def beside_bucket(prefix: str, kind: str, account: Account) -> str:
    """Return the name of a further bucket. The region is hashed: S3 allows 63 characters."""
    region = hashlib.sha256(account.region.encode()).hexdigest()[:8]
    return f"{prefix}-{kind}-{account.id}-{region}"


def _encryption(key: pulumi.Input[str] | None) -> aws.s3.BucketServerSideEncryptionConfigurationRuleArgs:
    """Return the encryption of new objects: S3's own key, or a KMS key with S3's bucket keys, which spare a
    call per object.
    """
    rule = aws.s3.BucketServerSideEncryptionConfigurationRuleArgs
    default = aws.s3.BucketServerSideEncryptionConfigurationRuleApplyServerSideEncryptionByDefaultArgs
    if key is None:
        return rule(apply_server_side_encryption_by_default=default(sse_algorithm="AES256"))
    by_key = default(sse_algorithm="aws:kms", kms_master_key_id=key)
    return rule(apply_server_side_encryption_by_default=by_key, bucket_key_enabled=True)


def lifecycle_rules(*, noncurrent_days: int, experiment_days: int) -> Lifecycle:
    """Return the expiry rules. If two rules match an object, S3 applies the shorter time."""
    rule = aws.s3.BucketLifecycleConfigurationRuleArgs
    prefix = aws.s3.BucketLifecycleConfigurationRuleFilterArgs
    expiration = aws.s3.BucketLifecycleConfigurationRuleExpirationArgs
    noncurrent = aws.s3.BucketLifecycleConfigurationRuleNoncurrentVersionExpirationArgs
    return [
        rule(
            id="old-versions",
            status="Enabled",
            filter=prefix(prefix=""),
            noncurrent_version_expiration=noncurrent(noncurrent_days=noncurrent_days),
            expiration=expiration(expired_object_delete_marker=True),
        ),
        unfinished_uploads(),
        # A heartbeat is rewritten every few seconds; only the last one is needed.
        rule(
            id="heartbeats",
            status="Enabled",
            filter=prefix(prefix="live/"),
            expiration=expiration(days=30),
            noncurrent_version_expiration=noncurrent(noncurrent_days=1),
        ),
        rule(
            id="experiments",
            status="Enabled",
            filter=prefix(prefix="models/experiments/"),
            expiration=expiration(days=experiment_days),
        ),
    ]


def unfinished_uploads() -> aws.s3.BucketLifecycleConfigurationRuleArgs:
    """Return the rule that removes unfinished uploads."""
    return aws.s3.BucketLifecycleConfigurationRuleArgs(
        id="unfinished-uploads",
        status="Enabled",
        filter=aws.s3.BucketLifecycleConfigurationRuleFilterArgs(prefix=""),
        abort_incomplete_multipart_upload=aws.s3.BucketLifecycleConfigurationRuleAbortIncompleteMultipartUploadArgs(
            days_after_initiation=7
        ),
    )
