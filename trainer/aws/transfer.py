"""Upload or download one file with its hash checked: uploads by S3 itself, downloads here, before the file
gets its name.

Raises botocore's errors; the caller translates them, since it knows what the file is.
"""

from __future__ import annotations

import base64
import hashlib
from contextlib import suppress
from pathlib import Path
from typing import Any

from trainer.aws.access import error_code, version_of
from trainer.aws.error_codes import NO_OBJECT
from trainer.base.files import open_plain, whole_file

LARGEST_PUT_BYTES = 5 * 1024**3  # one PutObject, https://docs.aws.amazon.com/AmazonS3/ (looked up 2026-11-20)
_BLOCK_BYTES = 1 << 20


class _OtherBytes(Exception):
    """The version's bytes have another hash."""


def put_file(path: Path, key: str, sha256: str, client: Any, *, bucket: str) -> str:
    """Upload a file unless its key holds these bytes by its metadata, and return the version's id. Raises
    botocore's errors.
    """
    version_id = _version_with_hash(key, sha256, client, bucket=bucket)
    if version_id is not None:
        return version_id
    with open_plain(path) as body:
        # S3 itself refuses bytes that changed between the check and the upload.
        checked = {"ChecksumSHA256": base64.b64encode(bytes.fromhex(sha256)).decode()}
        metadata = {"sha256": sha256}
        answer = client.put_object(Bucket=bucket, Key=key, Body=body, Metadata=metadata, **checked)
    return version_of(answer, f"s3://{bucket}/{key}")


def fetch_file(path: Path, key: str, version_id: str, sha256: str, client: Any, *, bucket: str) -> str:
    """Download one version and return the sha256 of its bytes; `path` is replaced only if that is `sha256`.

    Makes missing folders. Raises botocore's errors.
    """
    digest = hashlib.sha256()
    with suppress(_OtherBytes), whole_file(path) as part:
        answer = client.get_object(Bucket=bucket, Key=key, VersionId=version_id)
        with part.open("xb") as file:
            for block in answer["Body"].iter_chunks(_BLOCK_BYTES):
                digest.update(block)
                file.write(block)
        if digest.hexdigest() != sha256:
            raise _OtherBytes
    return digest.hexdigest()


def _version_with_hash(key: str, sha256: str, client: Any, *, bucket: str) -> str | None:
    """Return the newest version's id if it has this hash."""
    from botocore.exceptions import ClientError  # late: half a second that checks need not pay

    try:
        head = client.head_object(Bucket=bucket, Key=key)
    except ClientError as error:
        if error_code(error) in NO_OBJECT:
            return None
        raise
    return version_of(head, f"s3://{bucket}/{key}") if head["Metadata"].get("sha256") == sha256 else None
