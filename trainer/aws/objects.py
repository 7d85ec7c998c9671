"""The objects of one bucket: `Objects`, the few calls that the control plane needs, which S3 implements here
and the tests in memory.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from trainer.aws.access import Access, aws_error, aws_errors, error_code, version_of
from trainer.aws.error_codes import ARCHIVED, LOST_RACE, NO_OBJECT, SPOILED_KEY, SPOILED_OBJECT
from trainer.aws.transfer import fetch_file
from trainer.base.errors import ConfigError, ConnectionFailed, TrainerError

LAGS = "S3 may lose sight of it for a quarter of an hour after the first pulumi up"
_BLOCK_BYTES = 1 << 20


class Conflict(Exception):
    """Another writer was first: read again and decide again. Never reaches a user."""


class SpoiledObject(ConfigError):
    """An object that its writer made unreadable: archived, or encrypted with a key of its own."""


@dataclass(frozen=True, kw_only=True)
class Stored:
    """One object as S3 describes it; `body` is empty if only its head was asked for."""

    key: str
    etag: str
    version_id: str = ""
    size: int = 0
    modified_at: datetime
    sha256: str = ""  # S3's own checksum if the writer asked for one, else the writer's metadata
    checksum: str = ""  # S3's own only, which no writer can forge
    metadata: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    deleted: bool = False  # the marker of a deletion, in a history


class Objects(Protocol):
    """The objects of one bucket."""

    def get(self, *, key: str, version_id: str = "", first_bytes: int = 0) -> Stored | None: ...

    def head(self, *, key: str, version_id: str = "") -> Stored | None: ...

    def put(self, *, key: str, body: bytes, if_match: str = "", create: bool = False) -> str: ...

    def copy(
        self,
        *,
        source: str,
        version_id: str,
        key: str,
        if_match: str = "",
        create: bool = False,
        sha256: str = "",
    ) -> None: ...

    def delete(self, *, key: str, version_id: str) -> None: ...

    def digest(self, *, key: str, version_id: str) -> str: ...

    def fetch(self, *, key: str, version_id: str, path: Path, sha256: str, size: int) -> str: ...

    def list(self, *, prefix: str, most: int = 0, after: str = "") -> tuple[Stored, ...]: ...

    def versions(self, *, key: str) -> tuple[Stored, ...]: ...

    def history(self, *, prefix: str) -> tuple[Stored, ...]: ...

    def folders(self, *, prefix: str) -> tuple[str, ...]: ...


class S3Objects:
    """`Objects` by boto3. Every botocore error leaves here as one of ours."""

    def __init__(self, s3: Any, bucket: str) -> None:
        self._s3, self._bucket = s3, bucket

    def get(self, *, key: str, version_id: str = "", first_bytes: int = 0) -> Stored | None:
        """Return the object with its bytes (all, or the first `first_bytes`), or None if there is none."""
        from botocore.exceptions import BotoCoreError, ClientError

        part = {"Range": f"bytes=0-{first_bytes - 1}"} if first_bytes else {}
        try:
            response = self._ask("get_object", key, version_id, **part)
            return None if response is None else stored_of(key, response, body=response["Body"].read())
        except ClientError as error:
            if error_code(error) == "InvalidRange":  # an empty object has no first byte
                return self.head(key=key, version_id=version_id)
            raise _unread(error, f"cannot read s3://{self._bucket}/{key}") from error
        except BotoCoreError as error:  # the connection broke while the body came
            raise aws_error(error, f"cannot read s3://{self._bucket}/{key}") from error

    def head(self, *, key: str, version_id: str = "") -> Stored | None:
        """Return the object without its bytes, or None if there is none."""
        try:
            response = self._ask("head_object", key, version_id, ChecksumMode="ENABLED")
        except SpoiledObject as error:
            if (
                error_code(error.__cause__ or error) == "400"
            ):  # of expired credentials, too: GET tells them apart
                self.get(key=key, version_id=version_id, first_bytes=1)
            raise
        return None if response is None else stored_of(key, response)

    def put(self, *, key: str, body: bytes, if_match: str = "", create: bool = False) -> str:
        """Write an object and return its ETag. Raises Conflict if `if_match` or `create` finds another
        writer's.

        Raises NotVersioned for an object without a version, ConnectionFailed if S3 lost sight of the one to
        replace.
        """
        condition = _condition(if_match, create)
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            kind = "text/html; charset=utf-8" if key.endswith(".html") else "application/json"
            response = self._s3.put_object(
                Bucket=self._bucket, Key=key, Body=body, ContentType=kind, **condition
            )
        except (BotoCoreError, ClientError) as error:
            if condition and error_code(error) in LOST_RACE:
                if not (written := self._written_before(key, body, error)):
                    raise Conflict(key) from error
                return written
            if if_match and error_code(error) in NO_OBJECT:
                what = f"s3://{self._bucket}/{key} was there and is not found now"
                raise ConnectionFailed(what, why=LAGS, do="Look again in a few minutes.") from error
            raise aws_error(error, f"cannot write s3://{self._bucket}/{key}") from error
        version_of(response, f"s3://{self._bucket}/{key}")
        return str(response["ETag"])

    def _written_before(self, key: str, body: bytes, error: Exception) -> str:
        """Return the ETag of an object that this call wrote: botocore repeats a call whose answer was lost.
        Else ''.
        """
        if not getattr(error, "response", {}).get("ResponseMetadata", {}).get("RetryAttempts"):
            return ""
        there = self.get(key=key)
        return there.etag if there is not None and there.body == body else ""

    def copy(
        self,
        *,
        source: str,
        version_id: str,
        key: str,
        if_match: str = "",
        create: bool = False,
        sha256: str = "",
    ) -> None:
        """Copy one version of an object, with its metadata, or with `sha256` alone and S3's own checksum.
        Raises Conflict and NotVersioned as `put` does, SpoiledObject for an archived one.
        """
        from botocore.exceptions import BotoCoreError, ClientError

        condition = _condition(if_match, create)
        request: dict[str, Any] = {"Bucket": self._bucket, "Key": key, **condition}
        request["CopySource"] = {"Bucket": self._bucket, "Key": source, "VersionId": version_id}
        if sha256:
            request |= {"MetadataDirective": "REPLACE", "Metadata": {"sha256": sha256}}
            request["ChecksumAlgorithm"] = "SHA256"
        try:
            response = self._s3.copy_object(**request)
        except (BotoCoreError, ClientError) as error:
            if condition and error_code(error) in LOST_RACE:
                raise Conflict(key) from error
            doing = f"cannot copy s3://{self._bucket}/{source} to {key}"
            raise _unread(error, doing, spoiled=ARCHIVED) from error
        version_of(response, f"s3://{self._bucket}/{key}")

    def delete(self, *, key: str, version_id: str) -> None:
        """Delete one version of an object for good; the one before it, if any, is the object then."""
        with aws_errors(f"cannot delete s3://{self._bucket}/{key}"):
            self._s3.delete_object(Bucket=self._bucket, Key=key, VersionId=version_id)

    def digest(self, *, key: str, version_id: str) -> str:
        """Return the SHA-256 of one version of an object, read in blocks; '' if there is none."""
        digest = hashlib.sha256()
        with aws_errors(f"cannot read s3://{self._bucket}/{key}"):
            response = self._ask("get_object", key, version_id)
            for block in response["Body"].iter_chunks(_BLOCK_BYTES) if response else ():
                digest.update(block)
        return digest.hexdigest() if response else ""

    def fetch(self, *, key: str, version_id: str, path: Path, sha256: str, size: int) -> str:
        """Download one version of an object, whose `size` is known, and return the SHA-256 of its bytes;
        `path` is replaced only if that is `sha256`, or if this is empty. See `aws.transfer.fetch_file`.
        """
        with aws_errors(f"cannot read s3://{self._bucket}/{key}"):
            return fetch_file(path, key, version_id, sha256, self._s3, bucket=self._bucket, size=size)

    def versions(self, *, key: str) -> tuple[Stored, ...]:
        """Return every version of one object, the newest first, without bytes and hashes."""
        return tuple(item for item in self.history(prefix=key) if item.key == key and not item.deleted)

    def history(self, *, prefix: str) -> tuple[Stored, ...]:
        """Return every version of the objects under a prefix and the markers of deletions, by key, the newest
        first; without bytes and hashes.
        """
        with aws_errors(f"cannot list the versions of s3://{self._bucket}/{prefix}"):
            pages = list(
                self._s3.get_paginator("list_object_versions").paginate(Bucket=self._bucket, Prefix=prefix)
            )
        found = [
            (item, kind)
            for page in pages
            for kind in ("Versions", "DeleteMarkers")
            for item in page.get(kind, [])
        ]
        # Stable: of one second, S3's own order of each kind stays.
        found.sort(key=lambda one: (one[0].get("IsLatest", False), one[0]["LastModified"]), reverse=True)
        found.sort(key=lambda one: str(one[0]["Key"]))
        return tuple(
            Stored(
                key=item["Key"],
                etag=item.get("ETag", ""),
                version_id=item["VersionId"],
                size=int(item.get("Size", 0)),
                modified_at=_utc(item["LastModified"]),
                deleted=kind == "DeleteMarkers",
            )
            for item, kind in found
        )

    def list(self, *, prefix: str, most: int = 0, after: str = "") -> tuple[Stored, ...]:
        """Return the objects under a prefix, the first `most` or all, by key, without bytes; with `after`
        those whose keys follow it.
        """
        listed = (
            Stored(
                key=item["Key"],
                etag=item["ETag"],
                size=int(item["Size"]),
                modified_at=_utc(item["LastModified"]),
            )
            for page in self._pages(prefix, **({"StartAfter": after} if after else {}))
            for item in page.get("Contents", [])
        )
        return tuple(islice(listed, most or None))

    def folders(self, *, prefix: str) -> tuple[str, ...]:
        """Return the names of the folders directly under a prefix."""
        return tuple(
            item["Prefix"][len(prefix) :].rstrip("/")
            for page in self._pages(prefix, Delimiter="/")
            for item in page.get("CommonPrefixes", [])
        )

    def _pages(self, prefix: str, **more: str) -> Iterator[Any]:
        with aws_errors(f"cannot list s3://{self._bucket}/{prefix}"):
            yield from self._s3.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=prefix, **more
            )

    def _ask(self, operation: str, key: str, version_id: str, **more: str) -> Any:
        from botocore.exceptions import BotoCoreError, ClientError

        if version_id:
            more["VersionId"] = version_id
        try:
            return getattr(self._s3, operation)(Bucket=self._bucket, Key=key, **more)
        except (BotoCoreError, ClientError) as error:
            if error_code(error) in NO_OBJECT:
                return None
            if error_code(error) == "InvalidRange":
                raise
            raise _unread(error, f"cannot read s3://{self._bucket}/{key}") from error


def _unread(error: BaseException, doing: str, *, spoiled: Collection[str] = SPOILED_OBJECT) -> TrainerError:
    """Return our error for an object that S3 did not return: SpoiledObject if its writer is the cause."""
    failed, code = aws_error(error, doing), error_code(error)
    if code in spoiled or code.startswith(SPOILED_KEY):
        return SpoiledObject(failed.what, why=failed.why, do=failed.do)
    return failed


def given(ask: Callable[[], Stored | None]) -> Stored | None:
    """Get an object that a node wrote; one that its writer made unreadable counts as empty.

    A node can archive its object, or encrypt it with its own key, which must not end the command.
    Still raises what a node can't cause: work that S3 fails to show once is not lost.
    """
    try:
        return ask()
    except SpoiledObject:
        return Stored(key="", etag="", modified_at=datetime.fromtimestamp(0, timezone.utc))


def open_objects(access: Access, bucket: str) -> S3Objects:
    """Return the objects of a bucket."""
    return S3Objects(access.client("s3"), bucket)


def put_over(objects: Objects, key: str, body: bytes, before: Stored | None) -> None:
    """Write an object over the one that was read, if any. Raises Conflict if another writer was first."""
    objects.put(key=key, body=body, if_match=before.etag if before else "", create=before is None)


def _condition(if_match: str, create: bool) -> dict[str, str]:
    return {"IfMatch": if_match} if if_match else {"IfNoneMatch": "*"} if create else {}


def stored_of(key: str, response: Any, body: bytes = b"") -> Stored:
    """Return an object as S3's answer to a HEAD or GET describes it."""
    metadata = {name.lower(): value for name, value in response.get("Metadata", {}).items()}
    own = response.get("ChecksumSHA256", "")
    # "<hash>-<parts>" is a multipart upload's hash of hashes, which can't be compared
    checksum = base64.b64decode(own).hex() if own and "-" not in own else ""
    return Stored(
        key=key,
        etag=response["ETag"],
        version_id=response.get("VersionId", ""),
        size=int(response.get("ContentLength", len(body))),
        modified_at=_utc(response["LastModified"]),
        sha256=checksum or metadata.get("sha256", ""),
        checksum=checksum,
        metadata=metadata,
        body=body,
    )


def _utc(instant: datetime) -> datetime:
    return instant.astimezone(timezone.utc)
