"""Candles between the desk and the bucket's raw/: upload what is not there yet, list what is. The only boto3 of `data`.

An object's sha256 stands in its metadata; raw-index/<sha256>.json beside it says what the data check found in that file,
so that a later launch plans without downloading anything.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainer.access import Access, aws_error, error_code
from trainer.errors import DataError

RAW, INDEX = "raw/", "raw-index/"
LARGEST_PUT_BYTES = 5 * 1024**3  # one PutObject, https://docs.aws.amazon.com/AmazonS3/ (looked up 2026-11-20)
_PARALLEL = 8


@dataclass(frozen=True, kw_only=True)
class LocalFile:
    """A file that the data check has read: where it is, what it is, and what it holds."""

    path: Path
    sha256: str
    bytes: int
    summary: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RawObject:
    """An object of raw/ as a run pins it, with its index entry ({} where nobody wrote one)."""

    key: str
    version_id: str
    sha256: str
    bytes: int
    summary: dict[str, Any] = field(default_factory=dict)

    def pinned(self) -> dict[str, Any]:
        """Return the entry of manifest.json's inputs."""
        return {"key": self.key, "version_id": self.version_id, "sha256": self.sha256, "bytes": self.bytes}


def upload(files: Sequence[LocalFile], access: Access, *, bucket: str) -> list[RawObject]:
    """Put files into raw/, each under its own name; what is there with the same hash stays. Returns them in the given order."""
    from botocore.exceptions import BotoCoreError, ClientError

    client = access.client("s3", timeout_seconds=120.0)
    try:
        with ThreadPoolExecutor(max_workers=_PARALLEL) as pool:
            return list(pool.map(lambda file: _upload_one(file, client, bucket=bucket), files))
    except (BotoCoreError, ClientError) as error:
        raise aws_error(error, f"cannot upload data to s3://{bucket}/{RAW}") from error


def list_raw(access: Access, *, bucket: str) -> list[RawObject]:
    """Return every object of raw/ with its hash and index entry, by key. An object without a hash has sha256 ''."""
    from botocore.exceptions import BotoCoreError, ClientError

    client = access.client("s3")
    try:
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=RAW)
        keys = [entry["Key"] for page in pages for entry in page.get("Contents", ()) if not entry["Key"].endswith("/")]
        with ThreadPoolExecutor(max_workers=_PARALLEL) as pool:
            return list(pool.map(lambda key: _described(key, client, bucket=bucket), sorted(keys)))
    except (BotoCoreError, ClientError) as error:
        raise aws_error(error, f"cannot list s3://{bucket}/{RAW}") from error


def _upload_one(file: LocalFile, client: Any, *, bucket: str) -> RawObject:
    if file.bytes > LARGEST_PUT_BYTES:
        raise DataError(
            f"{file.path} has {file.bytes} bytes", why="one upload takes 5 GiB", do="Split it, by year for example."
        )
    key = f"{RAW}{file.path.name}"
    _write_index(file, client, bucket=bucket)
    version_id = _version_with_hash(key, file.sha256, client, bucket=bucket)
    if version_id is None:
        with file.path.open("rb") as body:
            answer = client.put_object(
                Bucket=bucket,
                Key=key,
                Body=body,
                Metadata={"sha256": file.sha256},
                # S3 itself refuses bytes that changed between the check and the upload.
                ChecksumSHA256=base64.b64encode(bytes.fromhex(file.sha256)).decode(),
            )
        version_id = answer["VersionId"]
    return RawObject(key=key, version_id=version_id, sha256=file.sha256, bytes=file.bytes, summary=file.summary)


def _version_with_hash(key: str, sha256: str, client: Any, *, bucket: str) -> str | None:
    """Return the newest version's id if it has this hash."""
    from botocore.exceptions import ClientError

    try:
        head = client.head_object(Bucket=bucket, Key=key)
    except ClientError as error:
        if error_code(error) in ("404", "NoSuchKey", "NotFound"):
            return None
        raise
    return str(head["VersionId"]) if head["Metadata"].get("sha256") == sha256 else None


def _write_index(file: LocalFile, client: Any, *, bucket: str) -> None:
    body = json.dumps(file.summary, indent=1).encode()
    client.put_object(Bucket=bucket, Key=f"{INDEX}{file.sha256}.json", Body=body, ContentType="application/json")


def _described(key: str, client: Any, *, bucket: str) -> RawObject:
    from botocore.exceptions import ClientError

    head = client.head_object(Bucket=bucket, Key=key)
    sha256 = head["Metadata"].get("sha256", "")
    summary: dict[str, Any] = {}
    if sha256:
        try:
            summary = json.loads(client.get_object(Bucket=bucket, Key=f"{INDEX}{sha256}.json")["Body"].read())
        except ClientError as error:
            if error_code(error) not in ("NoSuchKey", "404"):
                raise
    return RawObject(key=key, version_id=head["VersionId"], sha256=sha256, bytes=head["ContentLength"], summary=summary)
