"""A folder instead of a bucket: implements the S3 calls that Mayfly makes, with each object a file under its
key.

For machines without AWS (`mayfly agent --here --local FOLDER`). Standard library only, but for botocore's
errors, which callers expect. An object has one version, named by the hash of its bytes; replaced bytes are
lost. A lock serializes writers, so that compare-and-swap works. Returned writes are on the disk.
"""

from __future__ import annotations

import base64
import hashlib
import io
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, BinaryIO

from trainer.base.symbols import path_flaw

_BLOCK_BYTES = 1 << 20
_LOCK = ".lock"  # no key begins with a dot


class FolderBucket:
    """A folder with the methods of an S3 client that Mayfly calls; `Bucket` is ignored. Raises botocore's
    errors.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put_object(
        self,
        *,
        Key: str,
        Body: Any = b"",
        IfMatch: str = "",
        IfNoneMatch: str = "",
        ChecksumSHA256: str = "",
        ContentLength: int | None = None,
        **_: Any,
    ) -> dict[str, Any]:
        """Write an object atomically, by a rename."""
        place = self._place(Key)
        new = place.with_name(f".new-{secrets.token_hex(8)}")
        with _failing("PutObject"):
            place.parent.mkdir(parents=True, exist_ok=True)
            try:
                sha256 = _written(new, io.BytesIO(Body) if isinstance(Body, bytes) else Body, ContentLength)
                if ChecksumSHA256 and base64.b64decode(ChecksumSHA256).hex() != sha256:
                    raise _error(
                        "BadDigest",
                        400,
                        "PutObject",
                        "The SHA256 you specified did not match what we received.",
                    )
                with self._writing():
                    exists = place.is_file()
                    if IfMatch and not exists:
                        raise _error("NoSuchKey", 404, "PutObject", "The specified key does not exist.")
                    if IfNoneMatch and exists or IfMatch and _sha256_of(place) != IfMatch:
                        raise _error(
                            "PreconditionFailed",
                            412,
                            "PutObject",
                            "At least one of the pre-conditions did not hold",
                        )
                    new.replace(place)
            finally:
                new.unlink(missing_ok=True)
        return {"ETag": sha256, "VersionId": sha256}

    def head_object(self, *, Key: str, VersionId: str = "", **_: Any) -> dict[str, Any]:
        """Describe an object, its hash computed from its bytes."""
        place = self._place(Key)
        with _failing("HeadObject"):
            sha256 = self._sha256(Key, VersionId, "HeadObject")
            about = place.stat()
        return {
            "ETag": sha256,
            "VersionId": sha256,
            "ContentLength": about.st_size,
            "LastModified": datetime.fromtimestamp(about.st_mtime, timezone.utc),
            "ChecksumSHA256": base64.b64encode(bytes.fromhex(sha256)).decode(),
            "Metadata": {"sha256": sha256},
        }

    def get_object(self, *, Key: str, VersionId: str = "", Range: str = "", **more: Any) -> dict[str, Any]:
        """Open an object, or its first bytes (`bytes=0-N`)."""
        head = self.head_object(Key=Key, VersionId=VersionId, **more)
        most = int(Range.rpartition("-")[2]) + 1 if Range else head["ContentLength"]
        if Range and not head["ContentLength"]:
            raise _error("InvalidRange", 416, "GetObject", "The requested range is not satisfiable")
        with _failing("GetObject"):
            body = FileBody(self._place(Key).open("rb"), most)
        return {**head, "ContentLength": min(most, head["ContentLength"]), "Body": body}

    def get_paginator(self, operation: str) -> FolderPages:
        """Return the pages of `list_objects_v2` or `list_object_versions`: one."""
        return FolderPages(self, operation)

    def entry(self, key: str) -> dict[str, Any]:
        """Return an object's entry in a listing, without its ETag."""
        about = self._place(key).stat()
        return {
            "Key": key,
            "ETag": "",
            "Size": about.st_size,
            "LastModified": datetime.fromtimestamp(about.st_mtime, timezone.utc),
        }

    def keys(self, prefix: str) -> Iterator[str]:
        """Yield the keys that begin with a prefix, in order; skip foreign files."""
        above = prefix.rpartition("/")[0]
        found = []
        for here, folders, names in os.walk(self.folder / above):
            folders[:] = [
                name for name in folders if not name.startswith(".") or Path(here).name == "raw"
            ]  # raw/.files/
            base = Path(here).relative_to(self.folder).as_posix()
            found += [f"{base}/{name}" if base != "." else name for name in names if not name.startswith(".")]
        yield from sorted(key for key in found if key.startswith(prefix))

    def _place(self, key: str) -> Path:
        if why := path_flaw(key.replace("raw/.files/", "raw/files/", 1)):
            raise _error("InvalidRequest", 400, "Object", f"{key[:80]!r}: {why}")
        return self.folder / key

    def _sha256(self, key: str, version_id: str, operation: str) -> str:
        try:
            sha256 = _sha256_of(self._place(key))
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            raise _error("NoSuchKey", 404, operation, "The specified key does not exist.") from error
        if version_id and version_id != sha256:
            raise _error("NoSuchVersion", 404, operation, "The specified version does not exist.")
        return sha256

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Hold the folder's lock, which the kernel releases when its holder dies, for a comparison and a
        rename.
        """
        import fcntl  # late: reading needs no lock, and no Unix

        with (self.folder / _LOCK).open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


class FileBody:
    """The body of an answer: a file, or its first bytes."""

    def __init__(self, file: BinaryIO, most: int) -> None:
        self._file, self._left = file, most

    def read(self, most: int = -1) -> bytes:
        """Return the next bytes, or all that are left."""
        block = self._file.read(self._left if most < 0 else min(most, self._left))
        self._left -= len(block)
        if not block or not self._left:
            self._file.close()
        return block

    def iter_chunks(self, chunk_size: int) -> Iterator[bytes]:
        """Yield the bytes in blocks."""
        while self._left and (block := self.read(chunk_size)):
            yield block


class FolderPages:
    """Listings of a folder bucket, each one page."""

    def __init__(self, bucket: FolderBucket, operation: str) -> None:
        self._bucket, self._operation = bucket, operation

    def paginate(self, *, Prefix: str = "", Delimiter: str = "", **_: Any) -> list[dict[str, Any]]:
        """Return the keys below a prefix; with a delimiter the names right below it that have something below
        them.
        """
        keys = list(self._bucket.keys(Prefix))
        if Delimiter:
            rest = (key.removeprefix(Prefix).partition(Delimiter) for key in keys)
            return [
                {
                    "CommonPrefixes": [
                        {"Prefix": f"{Prefix}{name}{Delimiter}"}
                        for name in dict.fromkeys(n for n, d, _ in rest if d)
                    ]
                }
            ]
        if self._operation == "list_object_versions":
            return [
                {
                    "Versions": [
                        {**self._bucket.entry(key), **_version(self._bucket.head_object(Key=key))}
                        for key in keys
                    ]
                }
            ]
        return [{"Contents": [self._bucket.entry(key) for key in keys]}]


def _version(head: Mapping[str, Any]) -> dict[str, Any]:
    return {name: head[name] for name in ("ETag", "VersionId")}


def _written(place: Path, body: BinaryIO, most: int | None) -> str:
    """Write a body, or so many bytes of it, to a new file; return its sha256."""
    digest, left = hashlib.sha256(), most
    with place.open("xb") as file:
        while block := body.read(_BLOCK_BYTES if left is None else min(_BLOCK_BYTES, left)):
            digest.update(block)
            file.write(block)
            left = None if left is None else left - len(block)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


def _sha256_of(place: Path) -> str:
    with place.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _failing(operation: str) -> Iterator[None]:
    """Turn an error of the disk, such as a full one, into one of botocore's, as callers expect: an agent
    retries those.
    """
    try:
        yield
    except OSError as error:
        raise _error("FolderFailed", 500, operation, str(error)) from error


def _error(code: str, status: int, operation: str, message: str) -> Exception:
    from botocore.exceptions import ClientError  # late, like everywhere: --help must not wait for it

    answer: Any = {
        "Error": {"Code": code, "Message": message},
        "ResponseMetadata": {"HTTPStatusCode": status},
    }
    error: Exception = ClientError(answer, operation)
    return error
