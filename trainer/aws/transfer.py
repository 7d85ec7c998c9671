"""Upload or download one file with its hash checked before anybody can take it for whole: the one way of
files to and from S3, of launches, data sets, backups, nodes and pulls.

A small file is one request: S3 itself checks its upload, and stores a SHA-256 of its own. Larger files go and
come in parts (`parts.py`), and the next try goes on where one was broken off; S3 has no SHA-256 of an object
that came in parts. Raises botocore's errors; the caller translates them, since it
knows what the file is.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, Any, TypeVar

from trainer.aws.access import error_code, version_of
from trainer.aws.checksums import sha256_sum
from trainer.aws.error_codes import NO_OBJECT
from trainer.aws.parts import WHOLE_BYTES, Moved, OtherObjectError, fetch_parts, send_parts
from trainer.base import environment
from trainer.base.files import open_plain, whole_file

# One object. S3 user guide, "Uploading and copying objects using multipart upload" (looked up 2026-11-27).
LARGEST_OBJECT_BYTES = 5 * 1024**4
CHANGED = ("BadDigest", "XAmzContentChecksumMismatch", "InvalidDigest", "IncompleteBody")  # while it was sent
_BLOCK_BYTES = 1 << 20


AT_ONCE = 48  # files
Done = TypeVar("Done")


class _Ended(Exception):
    """Another file has failed, or the command is interrupted."""


def several_at_once(tasks: Sequence[Callable[[Moved], Done]], *, moved: Moved) -> list[Done]:
    """Carry out transfers, AT_ONCE at a time, and return their results in order. Each calls what it is given
    with the bytes that move.

    The first error, or an interruption, ends those under way after the parts in hand, and is raised.
    """
    ended = threading.Event()

    def move(count: int) -> None:
        if ended.is_set():
            raise _Ended
        moved(count)

    def one(task: Callable[[Moved], Done]) -> Done:
        move(0)
        return task(move)

    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="file") as pool:
        jobs = [pool.submit(one, task) for task in tasks]
        try:
            for job in as_completed(jobs):
                job.result()
        except BaseException:  # whatever it is
            ended.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [job.result() for job in jobs]


class _OtherBytes(Exception):
    """The version's bytes have another hash."""


def put_file(
    path: Path, key: str, sha256: str, client: Any, *, bucket: str, moved: Moved = lambda count: None
) -> str:
    """Upload a file unless its key holds these bytes by its metadata, and return the version's id. Raises as
    `send_file` does.
    """
    if version_id := _version_with_hash(key, sha256, client, bucket=bucket):
        moved(path.stat().st_size)
        return version_id
    return send_file(path, key, sha256, client, bucket=bucket, moved=moved)


def send_file(
    path: Path, key: str, sha256: str, client: Any, *, bucket: str, moved: Moved = lambda count: None
) -> str:
    """Upload a file, whatever its key holds, and return the version's id. Raises botocore's errors, one of
    CHANGED for a file that is not what was hashed any more.

    `moved` is called with the bytes that are there, as they come.
    """
    with open_plain(path) as body:
        size = os.fstat(body.fileno()).st_size
        if size > WHOLE_BYTES:
            known: Any = {"bucket": bucket, "journals": environment.uploads_folder(), "moved": moved}
            known["there"] = partial(_version_with_hash, key, sha256, client, bucket=bucket)
            return send_parts(body, key, sha256, size, client, **known)
        version_id = put_whole(body, key, sha256, client, bucket=bucket)
    moved(size)
    return version_id


def put_whole(body: IO[bytes], key: str, sha256: str, client: Any, *, bucket: str, **more: Any) -> str:
    """Upload an open file, of 5 GiB at most, by one request; return the version's id. `more`: of the
    request. S3 itself refuses bytes that have another hash. Raises botocore's errors.
    """
    checked = {"ChecksumSHA256": sha256_sum(sha256)}
    answer = client.put_object(
        Bucket=bucket, Key=key, Body=body, Metadata={"sha256": sha256}, **checked, **more
    )
    return version_of(answer, f"s3://{bucket}/{key}")


def fetch_file(
    path: Path,
    key: str,
    version_id: str,
    sha256: str | Callable[[dict[str, Any]], str],
    client: Any,
    *,
    bucket: str,
    size: int = 0,
    moved: Moved = lambda count: None,
) -> str:
    """Download one version, or without one the object, and return the sha256 of its bytes; `path` is replaced
    only if that is `sha256`, or if this is empty. A function for it finds it in S3's answer.

    `size`: of the object, where it is known: a large one comes in parts. Makes missing folders. `moved` is
    called with the bytes that have come. Raises botocore's errors.
    """
    version = {"VersionId": version_id} if version_id else {}
    if size > WHOLE_BYTES:
        if callable(sha256):
            sha256 = sha256(client.head_object(Bucket=bucket, Key=key, **version, ChecksumMode="ENABLED"))
        with suppress(OtherObjectError):  # its hash says so then
            known: Any = {"bucket": bucket, "moved": moved}
            return fetch_parts(path, key, version_id, sha256, size, client, **known)
    digest = hashlib.sha256()
    with suppress(_OtherBytes), whole_file(path) as part:
        answer = client.get_object(Bucket=bucket, Key=key, **version)
        if callable(sha256):
            sha256 = sha256(answer)
        with part.open("xb") as file:
            for block in answer["Body"].iter_chunks(_BLOCK_BYTES):
                digest.update(block)
                file.write(block)
                moved(len(block))
        if sha256 and digest.hexdigest() != sha256:
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
