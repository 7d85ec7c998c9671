"""A bucket in a folder: the S3 calls that Mayfly makes, each object a file.

`FolderBucket` is for machines without AWS (`mayfly agent --here --local FOLDER`): an object lies under its
key and has one version, named by the hash of its bytes; replaced bytes are lost, and returned writes are on
the disk. The embedded AWS of a rehearsal keeps every version (`rehearsal/kept_bucket.py`). A lock serializes
writers, so that compare-and-swap works. Standard library only, but for botocore's errors, which callers
expect.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, BinaryIO

from trainer.aws.checksums import sha256_sum
from trainer.aws.folder_uploads import FolderUploads, sums_of
from trainer.base.symbols import MOST_PATH_BYTES, path_flaw

SCRIPT_DATA = "raw/.files"  # and encoders (`launch/uploads.py`)
_BLOCK_BYTES = 1 << 20
_LOCK = ".lock"  # no key begins with a dot
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")


@dataclass(frozen=True, kw_only=True)
class ObjectVersion:
    """One version of an object, or the marker of a deletion, which has no file."""

    key: str
    version_id: str
    modified_at: datetime
    sha256: str = ""
    size: int = 0
    file: Path | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    checksummed: bool = False  # whether its writer asked S3 for a checksum
    about: os.stat_result | None = None  # of the hashed file, where a writer may put another in its place

    @property
    def etag(self) -> str:
        """Return the ETag, in quotes as S3 writes it."""
        return f'"{self.sha256}"'

    def answer(self) -> dict[str, Any]:
        """Return S3's answer about this version."""
        known = {"ETag": self.etag, "VersionId": self.version_id, "LastModified": self.modified_at}
        known |= {"ContentLength": self.size, "ContentType": "binary/octet-stream"}
        known |= {"Metadata": dict(self.metadata)}
        return known | ({"ChecksumSHA256": sha256_sum(self.sha256)} if self.checksummed else {})

    def entry(self) -> dict[str, Any]:
        """Return this version's entry in a listing."""
        return {"Key": self.key, "ETag": self.etag, "Size": self.size, "LastModified": self.modified_at}


class FolderBucket:
    """A folder with the methods of an S3 client that Mayfly calls; `Bucket` is ignored. Raises botocore's
    errors.
    """

    durable = True  # a returned write is on the disk

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._uploads = FolderUploads(folder, refusal)

    def put_object(
        self,
        *,
        Key: str,
        Body: Any = b"",
        IfMatch: str = "",
        IfNoneMatch: str = "",
        ChecksumSHA256: str = "",
        ContentLength: int | None = None,
        Metadata: Mapping[str, str] | None = None,
        **_: Any,
    ) -> dict[str, Any]:
        """Write an object atomically, by a rename."""
        new = self._new_file(Key)
        body = io.BytesIO(Body) if isinstance(Body, bytes) else Body
        with self._failing("PutObject"):
            new.parent.mkdir(parents=True, exist_ok=True)
            try:
                sha256 = self._receive(new, body, ContentLength)
                if ChecksumSHA256 and ChecksumSHA256 != sha256_sum(sha256):
                    what = "The SHA256 you specified did not match what we received."
                    raise refusal("BadDigest", 400, "PutObject", what)
                with self._writing():
                    versions = self.versions(Key) if IfMatch or IfNoneMatch else []
                    check_conditions(versions, IfMatch, IfNoneMatch, "PutObject")
                    version = self._add(Key, new, sha256, dict(Metadata or {}), bool(ChecksumSHA256))
            finally:
                new.unlink(missing_ok=True)
        return {name: version.answer()[name] for name in ("ETag", "VersionId")}

    def copy_object(
        self, *, Key: str, CopySource: Mapping[str, str], IfMatch: str = "", IfNoneMatch: str = "", **_: Any
    ) -> dict[str, Any]:
        """Copy a version of an object."""
        with self._failing("CopyObject"):
            version = self.find(CopySource["Key"], CopySource.get("VersionId", ""), "", "CopyObject")
            assert version.file is not None
            with version.file.open("rb") as body:  # another writer may have replaced it just now
                return self.put_object(
                    Key=Key,
                    Body=body,
                    IfMatch=IfMatch,
                    IfNoneMatch=IfNoneMatch,
                    ChecksumSHA256=sha256_sum(version.sha256),
                )

    def delete_object(self, *, Key: str, VersionId: str = "", **_: Any) -> dict[str, Any]:
        """Delete an object; without it, or with another version there, do nothing, as S3 does."""
        with self._failing("DeleteObject"), self._writing():
            for version in self.versions(Key):
                if VersionId in ("", version.version_id):
                    self._path(Key).unlink(missing_ok=True)
        return {}

    def create_multipart_upload(
        self,
        *,
        Key: str,
        Metadata: Mapping[str, str] | None = None,
        ChecksumAlgorithm: str = "",
        ChecksumType: str = "",
        **_: Any,
    ) -> dict[str, Any]:
        """Begin an upload in parts."""
        algorithm = ChecksumAlgorithm.upper()
        kind = ChecksumType or ("FULL_OBJECT" if algorithm == "CRC64NVME" else "COMPOSITE")
        facts = {"key": Key, "metadata": dict(Metadata or {}), "algorithm": algorithm, "type": kind}
        with self._failing("CreateMultipartUpload"):
            return {"Key": Key, "UploadId": self._uploads.create(facts)}

    def upload_part(self, *, UploadId: str, PartNumber: int, Body: Any = b"", **more: Any) -> dict[str, Any]:
        """Take a part. A checksum that it names must be that of its bytes."""
        body, sums = Body if isinstance(Body, bytes) else Body.read(), sums_of(more)
        with self._failing("UploadPart"):
            return {"ETag": self._uploads.add(UploadId, int(PartNumber), body, sums), **sums}

    def complete_multipart_upload(
        self, *, Key: str, UploadId: str, MultipartUpload: Mapping[str, Any], **more: Any
    ) -> dict[str, Any]:
        """Join the named parts to an object. As in S3, it has no SHA-256 of its own."""
        with self._failing("CompleteMultipartUpload"):
            facts = self._uploads.facts(UploadId, "CompleteMultipartUpload")
            if facts["key"] != Key or (more.get("ChecksumType") or facts["type"]) != facts["type"]:
                code = "NoSuchUpload" if facts["key"] != Key else "BadDigest"
                raise refusal(code, 400, "CompleteMultipartUpload", "The upload is of another kind.")
            conditions = {name: more[name] for name in ("IfMatch", "IfNoneMatch") if more.get(name)}
            with self._uploads.joined(UploadId, list(MultipartUpload["Parts"])) as body:
                put = self.put_object(Key=Key, Body=body, Metadata=facts["metadata"], **conditions)
        return {"Key": Key, **put}

    def abort_multipart_upload(self, *, UploadId: str, **_: Any) -> dict[str, Any]:
        """Forget an upload and its parts."""
        self._uploads.forget(UploadId, "AbortMultipartUpload")
        return {}

    def head_object(self, *, Key: str, VersionId: str = "", IfMatch: str = "", **_: Any) -> dict[str, Any]:
        """Describe an object."""
        with self._failing("HeadObject"):
            return self.find(Key, VersionId, IfMatch, "HeadObject").answer()

    def get_object(
        self, *, Key: str, VersionId: str = "", Range: str = "", IfMatch: str = "", **_: Any
    ) -> dict[str, Any]:
        """Open an object, or one range of its bytes."""
        with self._failing("GetObject"):
            version, file = self._opened(Key, VersionId, IfMatch)
            first, last = span(Range, version.size)
            file.seek(first)
        length = last + 1 - first
        answer = {**version.answer(), "Body": FileBody(file, length)}
        if Range:  # S3's checksum is that of the whole object
            answer |= {"ContentLength": length, "ContentRange": f"bytes {first}-{last}/{version.size}"}
            answer.pop("ChecksumSHA256", None)
        return answer

    def list_objects_v2(
        self, *, Prefix: str = "", Delimiter: str = "", StartAfter: str = "", **_: Any
    ) -> dict[str, Any]:
        """List the keys below a prefix; with a delimiter only those right below it, and the folders there."""
        contents, folders = [], dict[str, None]()
        for entry in self._entries(Prefix):
            if entry["Key"] <= StartAfter:
                continue
            name, found, _rest = entry["Key"].removeprefix(Prefix).partition(Delimiter or "\0")
            if Delimiter and found:
                folders[f"{Prefix}{name}{Delimiter}"] = None
            else:
                contents.append(entry)
        listed = {"Contents": contents, "CommonPrefixes": [{"Prefix": folder} for folder in folders]}
        return {**listed, "KeyCount": len(contents) + len(folders), "IsTruncated": False}

    def list_object_versions(self, *, Prefix: str = "", **_: Any) -> dict[str, Any]:
        """List every version of the keys below a prefix, the newest of each key first."""
        found: dict[str, Any] = {"Versions": [], "DeleteMarkers": [], "IsTruncated": False}
        for key in self._keys(Prefix):
            for number, version in enumerate(self.versions(key)):
                entry = {**version.entry(), "VersionId": version.version_id, "IsLatest": number == 0}
                found["Versions" if version.file else "DeleteMarkers"].append(entry)
        return found

    def get_paginator(self, operation: str) -> FolderPages:
        """Return the pages of `list_objects_v2` or `list_object_versions`: one."""
        return FolderPages(self, operation)

    def find(self, key: str, version_id: str, if_match: str, operation: str) -> ObjectVersion:
        """Return a version of an object, the newest by default. Raises botocore's error for none."""
        versions = self.versions(key)
        check_conditions(versions, if_match, "", operation)
        known = [version for version in versions if version_id in ("", version.version_id)]
        if not known and versions and version_id:
            raise refusal("NoSuchVersion", 404, operation, "The specified version does not exist.")
        if not known or known[0].file is None:
            raise refusal("NoSuchKey", 404, operation, "The specified key does not exist.")
        return known[0]

    def _opened(self, key: str, version_id: str, if_match: str) -> tuple[ObjectVersion, BinaryIO]:
        """Return a version of an object, and its file, open: that which was hashed."""
        while True:
            version = self.find(key, version_id, if_match, "GetObject")
            assert version.file is not None
            file = version.file.open("rb")
            known, opened = version.about, os.fstat(file.fileno())
            if known is None or (known.st_ino, known.st_mtime_ns) == (opened.st_ino, opened.st_mtime_ns):
                return version, file
            file.close()

    def versions(self, key: str) -> list[ObjectVersion]:
        """Return the versions of an object, the newest first: here one, its hash computed from its bytes."""
        path = self._path(key)
        try:
            with path.open("rb") as file:
                sha256, about = hashlib.file_digest(file, "sha256").hexdigest(), os.fstat(file.fileno())
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return []
        version = ObjectVersion(
            key=key,
            version_id=sha256,
            modified_at=_instant(about),
            sha256=sha256,
            size=about.st_size,
            file=path,
            metadata={"sha256": sha256},
            checksummed=True,
            about=about,
        )
        return [version]

    def _add(
        self, key: str, new: Path, sha256: str, metadata: dict[str, str], checksummed: bool
    ) -> ObjectVersion:
        """Make a received file the newest version of an object; the caller holds the lock."""
        new.replace(self._path(key))
        (version,) = self.versions(key)
        return version

    def _entries(self, prefix: str) -> Iterator[dict[str, Any]]:
        """Yield the entries of the keys that begin with a prefix, in order: here without their hashes."""
        for key in self._keys(prefix):
            with suppress(FileNotFoundError):  # a link to nothing
                about = self._path(key).stat()
                yield {"Key": key, "ETag": "", "Size": about.st_size, "LastModified": _instant(about)}

    def _keys(self, prefix: str) -> list[str]:
        """Return the keys that begin with a prefix, in order, without foreign files. Raises botocore's error
        for a folder that can't be read: its keys would be missing.
        """
        above = prefix.rpartition("/")[0]
        found = []
        for here, folders, names in os.walk(self.folder / above, onerror=_unlisted):
            if Path(here).name != "raw":  # raw/.files/ has data
                folders[:] = [name for name in folders if not name.startswith(".")]
            base = Path(here).relative_to(self.folder)
            found += [(base / name).as_posix() for name in names if not name.startswith(".")]
        return sorted(key for key in found if key.startswith(prefix) and not key_flaw(key))

    def _new_file(self, key: str) -> Path:
        return self._path(key).with_name(f".new-{secrets.token_hex(8)}")

    def _path(self, key: str) -> Path:
        if why := key_flaw(key):
            raise refusal("InvalidRequest", 400, "Object", f"{key[:80]!r}: {why}")
        return self.folder / key

    def _receive(self, new: Path, body: BinaryIO, most: int | None) -> str:
        """Write a body, or so many bytes of it, to a new file; return its sha256."""
        digest, left = hashlib.sha256(), most
        with new.open("xb") as file:
            while block := body.read(_BLOCK_BYTES if left is None else min(_BLOCK_BYTES, left)):
                digest.update(block)
                file.write(block)
                left = None if left is None else left - len(block)
            file.flush()
            if self.durable:
                os.fsync(file.fileno())
        return digest.hexdigest()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Hold the folder's lock, which the kernel releases when its holder dies, for a comparison and a
        rename.
        """
        import fcntl  # late: reading needs no lock, and no Unix

        with (self.folder / _LOCK).open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    @contextmanager
    def _failing(self, operation: str) -> Iterator[None]:
        """Turn an error of the disk, such as a full one, into one of botocore's, as callers expect: an agent
        retries those.
        """
        try:
            yield
        except OSError as error:
            raise refusal("FolderFailed", 500, operation, str(error)) from error


class FileBody:
    """The body of an answer: a file from its position on, up to a number of bytes."""

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
        self._list = getattr(bucket, operation)

    def paginate(self, **arguments: Any) -> list[dict[str, Any]]:
        """Return the listing."""
        return [self._list(**arguments)]


def key_flaw(key: str, *, most_bytes: int = MOST_PATH_BYTES) -> str:
    """Return why a text can't be the key of an object, '' if it can. Of names that begin with a dot that of
    the folder of scripts' data alone can be a part.
    """
    return path_flaw(key.replace(f"{SCRIPT_DATA}/", "raw/files/", 1), most_bytes=most_bytes)


def check_conditions(
    versions: list[ObjectVersion], if_match: str, if_none_match: str, operation: str
) -> None:
    """Raise botocore's error unless an object's newest version meets a request's conditions."""
    newest = versions[0] if versions and versions[0].file else None
    if if_match and newest is None:
        raise refusal("NoSuchKey", 404, operation, "The specified key does not exist.")
    other = if_match and newest and if_match.strip('"') not in ("*", newest.sha256)
    if other or (if_none_match and newest):
        what = "At least one of the pre-conditions you specified did not hold"
        raise refusal("PreconditionFailed", 412, operation, what)


def _unlisted(error: OSError) -> None:
    if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
        raise refusal("FolderFailed", 500, "ListObjects", str(error)) from error


def span(text: str, size: int) -> tuple[int, int]:
    """Return the first and the last byte that a request's Range names. Raises botocore's error for none."""
    match = _RANGE.fullmatch(text)
    if not match or match[0] == "bytes=-":  # as S3: an unknown kind of range is ignored
        return 0, size - 1
    first = int(match[1]) if match[1] else max(size - int(match[2]), 0)
    if first >= size:
        raise refusal("InvalidRange", 416, "GetObject", "The requested range is not satisfiable")
    return first, min(int(match[2]), size - 1) if match[1] and match[2] else size - 1


def refusal(code: str, status: int, operation: str, message: str) -> Exception:
    """Return S3's error as botocore raises it."""
    from botocore.exceptions import ClientError  # late, like everywhere: --help must not wait for it

    answer: Any = {
        "Error": {"Code": code, "Message": message},
        "ResponseMetadata": {"HTTPStatusCode": status},
    }
    error: Exception = ClientError(answer, operation)
    return error


def _instant(about: os.stat_result) -> datetime:
    return datetime.fromtimestamp(about.st_mtime, timezone.utc)
