"""Access logs of the bucket, in a bucket of their own: every request for an object, written by S3 some hours
later.
"""

from __future__ import annotations

from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from infra import policies
from infra.storage import KeptBucketArgs, keep_bucket, unfinished_uploads


@dataclass(frozen=True, kw_only=True)
class AccessLogsArgs:
    account: str
    bucket: pulumi.Input[str]  # whose accesses are logged
    bucket_name: str  # the same, as text
    log_bucket_name: str
    log_days: int
    tags: dict[str, str]


class AccessLogs(pulumi.ComponentResource):
    """A private bucket that S3's logging service alone writes to. It stays with the other when the stack
    goes.
    """

    def __init__(self, name: str, args: AccessLogsArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("mayfly:access_logs:AccessLogs", name, None, opts)
        expiration = aws.s3.BucketLifecycleConfigurationRuleExpirationArgs(days=args.log_days)
        old = aws.s3.BucketLifecycleConfigurationRuleArgs(
            id="old-logs",
            status="Enabled",
            filter=aws.s3.BucketLifecycleConfigurationRuleFilterArgs(prefix=""),
            expiration=expiration,
        )
        logs, ready = keep_bucket(
            KeptBucketArgs(
                bucket_name=args.log_bucket_name,
                policy=policies.access_logs(
                    account=args.account, bucket=args.bucket_name, log_bucket=args.log_bucket_name
                ),
                lifecycle=[old, unfinished_uploads()],
                tags=args.tags,
                versioned=False,  # and S3's own key: the logging service takes no other
                prefix="log-",
                protect=False,
            ),
            parent=self,
        )
        aws.s3.BucketLogging(
            name,
            bucket=args.bucket,
            target_bucket=logs.id,
            target_prefix="s3/",
            opts=pulumi.ResourceOptions(parent=self, depends_on=[ready]),
        )
        self.register_outputs({})
