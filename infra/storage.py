"""The bucket: the only thing here that outlives the stack, since it holds the models. Its layout is in docs/architecture.md."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from infra import policies


@dataclass(frozen=True, kw_only=True)
class ModelStoreArgs:
    bucket_name: str
    noncurrent_days: int
    experiment_days: int
    tags: dict[str, str]


class ModelStore(pulumi.ComponentResource):
    """A versioned, encrypted, private bucket that `pulumi destroy` leaves in the account as it is.

    Its settings are resources too, and stay with it: the provider would suspend versioning as it deletes that one, and open
    the bucket with the others. They change one after another: S3 answers 409 to two changes of a bucket's access at once.
    """

    bucket: pulumi.Output[str]

    def __init__(self, name: str, args: ModelStoreArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("mayfly:storage:ModelStore", name, None, opts)

        def kept(after: pulumi.Resource | None = None) -> pulumi.ResourceOptions:
            return pulumi.ResourceOptions(
                parent=self, protect=True, retain_on_delete=True, depends_on=[after] if after is not None else None
            )

        bucket = aws.s3.Bucket(
            "bucket",
            bucket=args.bucket_name,
            force_destroy=False,
            tags=args.tags,
            opts=kept(),
        )
        versioning = aws.s3.BucketVersioning(
            "versioning",
            bucket=bucket.id,
            versioning_configuration=aws.s3.BucketVersioningVersioningConfigurationArgs(status="Enabled"),
            opts=kept(),
        )
        encryption = aws.s3.BucketServerSideEncryptionConfiguration(
            "encryption",
            bucket=bucket.id,
            rules=[
                aws.s3.BucketServerSideEncryptionConfigurationRuleArgs(
                    apply_server_side_encryption_by_default=aws.s3.BucketServerSideEncryptionConfigurationRuleApplyServerSideEncryptionByDefaultArgs(
                        sse_algorithm="AES256"
                    )
                )
            ],
            opts=kept(after=versioning),
        )
        closed = aws.s3.BucketPublicAccessBlock(
            "private",
            bucket=bucket.id,
            block_public_acls=True,
            block_public_policy=True,
            ignore_public_acls=True,
            restrict_public_buckets=True,
            opts=kept(after=encryption),
        )
        ownership = aws.s3.BucketOwnershipControls(
            "ownership",
            bucket=bucket.id,
            rule=aws.s3.BucketOwnershipControlsRuleArgs(object_ownership="BucketOwnerEnforced"),
            opts=kept(after=closed),
        )
        policy = aws.s3.BucketPolicy(
            "tls-only",
            bucket=bucket.id,
            policy=json.dumps(policies.tls_only(args.bucket_name)),
            opts=kept(after=ownership),
        )
        aws.s3.BucketLifecycleConfiguration(
            "lifecycle",
            bucket=bucket.id,
            rules=lifecycle_rules(noncurrent_days=args.noncurrent_days, experiment_days=args.experiment_days),
            opts=kept(after=policy),
        )
        self.bucket = bucket.bucket
        self.register_outputs({"bucket": self.bucket})


def lifecycle_rules(*, noncurrent_days: int, experiment_days: int) -> list[aws.s3.BucketLifecycleConfigurationRuleArgs]:
    """Return what S3 clears away by itself. Where two rules fit an object, S3 takes the shorter time."""
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
        rule(
            id="unfinished-uploads",
            status="Enabled",
            filter=prefix(prefix=""),
            abort_incomplete_multipart_upload=aws.s3.BucketLifecycleConfigurationRuleAbortIncompleteMultipartUploadArgs(
                days_after_initiation=7
            ),
        ),
        # A heartbeat is rewritten every few seconds; only the last one means anything.
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
