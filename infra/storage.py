"""The bucket, which outlives the stack, since it holds the models. Its layout is in docs/architecture.md."""

from __future__ import annotations

import json
import math
from typing import Any

import pulumi
import pulumi_aws as aws

from infra import policies
from infra.stack import Component, Stack
from infra.stack_settings import Retention


class ModelStore(Component):
    """A versioned, encrypted, private bucket that `pulumi destroy` leaves in the account as it is.

    Its settings are resources too, and stay with it: the provider would suspend versioning as it deletes that
    one, and open the bucket with the others. They change one after another: S3 answers 409 to two changes of
    a bucket's access at once.
    """

    bucket: pulumi.Output[str]

    def __init__(
        self, name: str, stack: Stack, *, retention: Retention, life_minutes: int, nodes: bool
    ) -> None:
        super().__init__(name, stack)
        opts = pulumi.ResourceOptions.merge(self.importable, self._kept())
        bucket = aws.s3.Bucket("bucket", bucket=stack.bucket, force_destroy=False, opts=opts)
        versioning = aws.s3.BucketVersioning(
            "versioning",
            bucket=bucket.id,
            versioning_configuration={"status": "Enabled"},
            opts=self._kept(),
        )
        encryption = aws.s3.BucketServerSideEncryptionConfiguration(
            "encryption", bucket=bucket.id, rules=[encrypted(stack.kms_key)], opts=self._kept(versioning)
        )
        closed = aws.s3.BucketPublicAccessBlock(
            "private",
            bucket=bucket.id,
            block_public_acls=True,
            block_public_policy=True,
            ignore_public_acls=True,
            restrict_public_buckets=True,
            opts=self._kept(encryption),
        )
        ownership = aws.s3.BucketOwnershipControls(
            "ownership",
            bucket=bucket.id,
            rule={"object_ownership": "BucketOwnerEnforced"},
            opts=self._kept(closed),
        )
        policy = aws.s3.BucketPolicy(
            "tls-only",
            bucket=bucket.id,
            policy=json.dumps(policies.tls_only(stack.bucket)),
            opts=self._kept(ownership),
        )
        aws.s3.BucketLifecycleConfiguration(
            "lifecycle",
            bucket=bucket.id,
            rules=expiry(retention, life_minutes=life_minutes, nodes=nodes),
            opts=self._kept(policy),
        )
        self.bucket = bucket.bucket
        self.register_outputs({"bucket": self.bucket})

    def _kept(self, *after: pulumi.Resource) -> pulumi.ResourceOptions:
        kept = pulumi.ResourceOptions(protect=True, retain_on_delete=True, depends_on=list(after))
        return pulumi.ResourceOptions.merge(self.child, kept)


def encrypted(kms_key: str) -> aws.s3.BucketServerSideEncryptionConfigurationRuleArgs:
    """Return the encryption of new objects: S3's own key, or a KMS key with S3's bucket keys, which spare a
    call per object.
    """
    rule = aws.s3.BucketServerSideEncryptionConfigurationRuleArgs
    default = aws.s3.BucketServerSideEncryptionConfigurationRuleApplyServerSideEncryptionByDefaultArgs
    if not kms_key:
        return rule(apply_server_side_encryption_by_default=default(sse_algorithm="AES256"))
    by_key = default(sse_algorithm="aws:kms", kms_master_key_id=kms_key)
    return rule(apply_server_side_encryption_by_default=by_key, bucket_key_enabled=True)


def expiry(retention: Retention, *, life_minutes: int, nodes: bool = False) -> list[Any]:
    """Return the expiry rules; models of runs have one only where days are set. If two rules match an object,
    S3 applies the shorter time. `life_minutes`: of the longest run; `nodes`: runs may have several.
    """

    def rule(name: str, prefix: str, **ends: dict[str, Any]) -> dict[str, Any]:
        return {"id": name, "status": "Enabled", "filter": {"prefix": prefix}, **ends}

    days = retention.experiment_days
    # From its upload on, which may be as long before the end of the run as that lives.
    kept = {"days": retention.checkpoint_days + math.ceil(life_minutes / (24 * 60))}
    # Each is deleted once its nodes are gone; this is for runs that nobody closes.
    ends = {"expiration": {"days": 1}, "noncurrent_version_expiration": {"noncurrent_days": 1}}
    tokens = [rule("tokens", "tokens/", **ends)] if nodes else []
    models = [rule("experiments", "models/experiments/", expiration={"days": days})] if days else []
    return [
        rule(
            "old-versions",
            "",
            noncurrent_version_expiration={"noncurrent_days": retention.noncurrent_days},
            expiration={"expired_object_delete_marker": True},
        ),
        rule("unfinished-uploads", "", abort_incomplete_multipart_upload={"days_after_initiation": 7}),
        # A heartbeat is rewritten every few seconds; only the last one is needed.
        rule(
            "heartbeats",
            "live/",
            expiration={"days": 30},
            noncurrent_version_expiration={"noncurrent_days": 1},
        ),
        # What nodes send, and its copies for later attempts. A node overwrites what is superseded.
        *(
            rule(name, f"{name}/", expiration=kept, noncurrent_version_expiration={"noncurrent_days": 1})
            for name in ("checkpoints", "resumed")
        ),
        *tokens,
        *models,
    ]
