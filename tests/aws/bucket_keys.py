"""The KMS keys of buckets, whose use is asked of IAM on the caller's behalf."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer.rehearsal.account import Rules
from trainer.rehearsal.storage import set_up_bucket
from trainer.rehearsal.wire import Answer, Call

if TYPE_CHECKING:
    from tests.aws.account import CheckedAccount


def put_bucket_encryption(cloud: CheckedAccount, call: Call) -> Answer:
    """Note the key that a bucket's encryption names, '' for S3's own."""
    answer = set_up_bucket(cloud, call)
    if answer[0] < 300:
        (rule,) = call.params["ServerSideEncryptionConfiguration"]["Rules"]
        own = rule["ApplyServerSideEncryptionByDefault"].get("KMSMasterKeyID", "")
        cloud.bucket_keys[call.params["Bucket"]] = own
    return answer


RULES: Rules = {("s3", "PutBucketEncryption"): put_bucket_encryption}
