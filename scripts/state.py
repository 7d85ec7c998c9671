"""Keep Pulumi's state in a bucket of the account: `scripts/state`, once per account and region.

Makes the bucket, versioned, encrypted and private, and logs Pulumi in to it. A second run brings the bucket's
settings back and logs in again, on any desk. `mayfly down` leaves it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from typing import Any

from infra.policies import tls_only
from trainer.aws.access import Access, aws_errors, own_access
from trainer.aws.place import REHEARSAL
from trainer.aws.stack import require_sign_in
from trainer.base.errors import TrainerError, UsageError

MADE_BEFORE = {"BucketAlreadyOwnedByYou"}
PRIVATE = ("BlockPublicAcls", "IgnorePublicAcls", "BlockPublicPolicy", "RestrictPublicBuckets")


def main() -> int:
    """Make the bucket, then run `pulumi login`, or print it where there is no Pulumi."""
    try:
        access = own_access()
        if access.place is REHEARSAL:
            what = "this shell's AWS is a rehearsal, which has no Pulumi state"
            raise UsageError(what, do="Use a shell with the account's own credentials.")
        require_sign_in(access)
        login = ["pulumi", "login", state_url(access)]
    except TrainerError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    if shutil.which("pulumi") is None:
        print("Pulumi is not on PATH. Once it is:", " ".join([*login[:2], f"'{login[2]}'"]), file=sys.stderr)
        return 0
    return subprocess.run(login, check=False).returncode


def state_url(access: Access) -> str:
    """Make the bucket of Pulumi's state, or close the one that is there; return the URL of `pulumi login`.

    Raises a TrainerError if AWS refuses, a bucket of another account with its name included.
    """
    s3, doing = access.client("s3"), "cannot make the bucket of Pulumi's state"
    region = s3.meta.region_name
    with aws_errors(doing):
        account = access.client("sts").get_caller_identity()["Account"]
    bucket = f"mayfly-state-{account}-{region}"
    # us-east-1 is S3's default, and no value of the constraint.
    place = {} if region == "us-east-1" else {"CreateBucketConfiguration": {"LocationConstraint": region}}
    with aws_errors(f"{doing}, {bucket}", but=MADE_BEFORE):
        s3.create_bucket(Bucket=bucket, **place)
    with aws_errors(f"cannot close {bucket}"):
        _close(s3, {"Bucket": bucket, "ExpectedBucketOwner": account})
    return f"s3://{bucket}?region={region}"


def _close(s3: Any, bucket: dict[str, str]) -> None:
    """Put the settings of a bucket that keeps every version and that nobody else reads."""
    s3.put_public_access_block(**bucket, PublicAccessBlockConfiguration=dict.fromkeys(PRIVATE, True))
    s3.put_bucket_versioning(**bucket, VersioningConfiguration={"Status": "Enabled"})
    by_default = {"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}
    s3.put_bucket_encryption(**bucket, ServerSideEncryptionConfiguration={"Rules": [by_default]})
    owned = {"Rules": [{"ObjectOwnership": "BucketOwnerEnforced"}]}
    s3.put_bucket_ownership_controls(**bucket, OwnershipControls=owned)
    s3.put_bucket_policy(**bucket, Policy=json.dumps(tls_only(bucket["Bucket"])))


if __name__ == "__main__":
    sys.exit(main())
