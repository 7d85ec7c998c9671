"""Large files in parts, several at a time: upload one that goes on where an earlier try was broken off, and
download one by ranges, likewise.

No torn file is ever taken for whole. An upload becomes an object only once all of its bytes, in the order of
the file, have the hash that it is known by, and each part had its checksum on the wire. A download gets its
name only once its bytes have that hash. Raises botocore's errors; the caller translates them.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import IO, Any

from trainer.aws.access import error_code, version_of
from trainer.aws.checksums import crc64nvme
from trainer.aws.journal import MOST_PARTS, Journal
from trainer.base.errors import FULL
from trainer.base.files import take_lock

PART_BYTES = 16 << 20  # of 5 MiB to 5 GiB that S3 allows; AWS advises 8 to 16 (S3 user guide, 2026-11-27)
WHOLE_BYTES = 2 * PART_BYTES  # up to here a file is one request: there is little to lose
_AT_ONCE = 8  # parts of one file
_TRIES, _PAUSE_SECONDS = 4, 0.5  # of a part whose connection breaks; the pause doubles
_BLOCK_BYTES = 1 << 20
# An upload that is not there any more: it has expired, or another command completed it.
_GONE = {"NoSuchUpload", "InvalidPart"}
_IN_HAND = threading.BoundedSemaphore(16)  # parts of all files: of memory, and of connections
Moved = Callable[[int], None]


class OtherObjectError(Exception):
    """The object has another size than was said, or is another version."""


def part_bytes_of(size: int) -> int:
    """Return the size of a file's parts: of 16 MiB, or more where these would be too many."""
    least = -(-size // MOST_PARTS)
    return max(PART_BYTES, -(-least // _BLOCK_BYTES) * _BLOCK_BYTES)


# --- up


def send_parts(
    body: IO[bytes],
    key: str,
    sha256: str,
    size: int,
    client: Any,
    *,
    bucket: str,
    journals: Path,
    moved: Moved,
    there: Callable[[], str | None],
) -> str:
    """Upload an open file of `size` bytes in parts and return the object's VersionId. `journals`: the folder
    of what was broken off; `there` returns the version of an object that has the hash already.

    Raises botocore's BadDigest if the bytes don't have the hash, since the file changed meanwhile.
    """
    known = {"bucket": bucket, "key": key, "sha256": sha256, "size": size, "part_bytes": part_bytes_of(size)}
    counted = 0

    def count(more: int) -> None:
        nonlocal counted
        counted += more
        moved(more)

    name = hashlib.sha256("\0".join((bucket, key, sha256)).encode()).hexdigest()
    journal = Journal(journals / f"{name[:32]}.jsonl", known)
    for is_last in (False, True):
        upload_id = _begun(journal, key, sha256, client, bucket)
        try:
            return _sent(body, journal, upload_id, client, count)
        except Exception as error:
            if error_code(error) not in _GONE or is_last:
                raise
            journal.forget()
            if version_id := there():
                moved(size - counted)
                return version_id
            count(-counted)
            body.seek(0)
    raise AssertionError("the second try returns or raises")


def _begun(journal: Journal, key: str, sha256: str, client: Any, bucket: str) -> str:
    """Return the id of the upload that an earlier try began, else of a new one."""
    earlier = journal.read()
    if earlier is not None and isinstance(upload_id := earlier.get("upload_id"), str):
        return upload_id
    made = client.create_multipart_upload(
        Bucket=bucket,
        Key=key,
        Metadata={"sha256": sha256},
        ChecksumAlgorithm="CRC64NVME",
        ChecksumType="FULL_OBJECT",
    )
    journal.begin(upload_id=made["UploadId"])
    return str(made["UploadId"])


def _sent(body: IO[bytes], journal: Journal, upload_id: str, client: Any, moved: Moved) -> str:
    """Send the parts that are not there yet, and complete the upload; return the object's VersionId."""
    of = journal.of
    upload = {"Bucket": of["bucket"], "Key": of["key"], "UploadId": upload_id}
    digest, left, number = hashlib.sha256(), of["size"], 0
    listed: dict[int, dict[str, Any]] = {}

    def send(number: int, block: bytes, checksum: str) -> None:
        answer = client.upload_part(**upload, PartNumber=number, Body=block, ChecksumCRC64NVME=checksum)
        listed[number] = {"ETag": answer["ETag"], "ChecksumCRC64NVME": checksum}
        journal.add(number, etag=answer["ETag"], checksum=checksum)

    with _pool() as run:
        while block := body.read(min(of["part_bytes"], left)):
            number, left = number + 1, left - len(block)
            digest.update(block)
            checksum, earlier = crc64nvme(block), journal.parts.get(number, {})
            if earlier.get("checksum") == checksum and isinstance(earlier.get("etag"), str):
                listed[number] = {"ETag": earlier["etag"], "ChecksumCRC64NVME": checksum}
                moved(len(block))
                continue
            for done in run(send, number, block, checksum, size=len(block)):
                moved(done)
        for done in run(None):
            moved(done)
    if digest.hexdigest() != of["sha256"]:
        journal.forget()  # its parts expire with the bucket's lifecycle
        from trainer.aws.folder_bucket import refusal  # late: seldom

        what = "The file changed while it was uploaded."
        raise refusal("BadDigest", 400, "CompleteMultipartUpload", what)
    parts = [{"PartNumber": number, **listed[number]} for number in sorted(listed)]
    answer = client.complete_multipart_upload(
        **upload, MultipartUpload={"Parts": parts}, ChecksumType="FULL_OBJECT"
    )
    journal.forget()
    return version_of(answer, f"s3://{of['bucket']}/{of['key']}")


@contextmanager
def _pool() -> Iterator[Callable[..., Iterator[int]]]:
    """Yield a function that runs one more part on a thread, once there is room for it, and yields the sizes
    of those that are done; with None it waits for all. Leaving by an error begins no more of them.
    """
    pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="part")
    running: deque[tuple[Future[Any], int]] = deque()

    def begin(task: Callable[..., Any] | None, *arguments: Any, size: int = 0) -> Iterator[int]:
        while running and (task is None or len(running) >= _AT_ONCE or running[0][0].done()):
            future, moved = running.popleft()
            future.result()
            yield moved
        if task is not None:
            _IN_HAND.acquire()
            running.append((pool.submit(task, *arguments), size))
            running[-1][0].add_done_callback(lambda _: _IN_HAND.release())  # also of one that never began

    try:
        yield begin
    finally:
        pool.shutdown(cancel_futures=True)


# --- down


def fetch_parts(
    path: Path,
    key: str,
    version_id: str,
    sha256: str,
    size: int,
    client: Any,
    *,
    bucket: str,
    moved: Moved,
    pause: Callable[[float], None] = time.sleep,
) -> str:
    """Download one version of `size` bytes by ranges, several at a time, and return the sha256 of its bytes;
    `path` is replaced only if that is `sha256`, or if this is empty.

    What was broken off lies beside `path`, and the next try goes on with it. Raises OtherObjectError for an
    object of another size.
    """
    known = {"bucket": bucket, "key": key, "version_id": version_id, "size": size}
    if not version_id:  # whatever is there now: what an earlier try left may be of another object
        known["etag"] = client.head_object(Bucket=bucket, Key=key)["ETag"]
    name = hashlib.sha256("\0".join((path.name, *map(str, known.values()))).encode()).hexdigest()[:32]
    path.parent.mkdir(parents=True, exist_ok=True)
    with _partial_of(path, name) as (file, partial):
        journal = Journal(partial.with_suffix(".parts"), known)
        for is_last in (False, True):
            resumed = journal.read() is not None and os.fstat(file).st_size == size
            if not resumed:
                journal.begin()
            try:
                found = _fetched(file, journal, client, moved, pause)
            except OtherObjectError:
                _remove(partial, journal)
                raise
            except OSError as error:
                if error.errno in FULL:
                    _remove(partial, journal)  # it fills the disk
                raise
            if not sha256 or found == sha256:
                partial.replace(path)
                journal.forget()
                return found
            if not resumed or is_last:
                _remove(partial, journal)
                return found
            journal.forget()
            moved(-size)  # what an earlier try left was spoiled: from the beginning
    raise AssertionError("the second try returns or raises")


@contextmanager
def _partial_of(path: Path, name: str) -> Iterator[tuple[int, Path]]:
    """Yield a partial file beside `path`, open and locked, and its path. While another download of the same,
    by any process, has one, this one has the next.
    """
    for number in count():
        partial = path.with_name(f".{name}{number or ''}.partial")
        if partial.is_symlink():
            partial.unlink()
        file = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            if _is_free(file, partial):
                yield file, partial
                return
        finally:
            os.close(file)


def _is_free(file: int, partial: Path) -> bool:
    """Lock an open partial file; return False if another has it, or has just finished with it."""
    if not take_lock(file):
        return False
    try:
        return os.path.samestat(os.fstat(file), partial.stat())
    except FileNotFoundError:
        return False


def _remove(partial: Path, journal: Journal) -> None:
    partial.unlink(missing_ok=True)
    journal.forget()


def _fetched(file: int, journal: Journal, client: Any, moved: Moved, pause: Callable[[float], None]) -> str:
    """Fetch the parts that are not there yet into an open file; return the sha256 of all of it, which is
    computed while later parts come.
    """
    size, step = journal.of["size"], part_bytes_of(journal.of["size"])
    digest, hashed = hashlib.sha256(), 0

    def fetch(number: int, first: int, last: int) -> None:
        _fetch_range(file, first, last, journal.of, client, pause)
        journal.add(number)

    def take_in(count: int) -> None:
        nonlocal hashed
        until = hashed + count
        while hashed < until and (block := os.pread(file, min(_BLOCK_BYTES, until - hashed), hashed)):
            digest.update(block)
            hashed += len(block)
        moved(count)

    os.ftruncate(file, size)
    with _pool() as run:
        for number, first in enumerate(range(0, size, step), 1):
            last = min(first + step, size) - 1
            task = _nothing if number in journal.parts else fetch
            for count in run(task, number, first, last, size=last + 1 - first):
                take_in(count)
        for count in run(None):
            take_in(count)
    return digest.hexdigest()


def _nothing(number: int, first: int, last: int) -> None:
    """A part that is there."""


def _fetch_range(
    file: int, first: int, last: int, of: dict[str, Any], client: Any, pause: Callable[[float], None]
) -> None:
    """Write a range of the object to its place in a file, with another try where the connection breaks."""
    from botocore.exceptions import HTTPClientError, IncompleteReadError

    for number in range(_TRIES):
        try:
            first = _write_range(file, first, last, of, client)
            if first > last:
                return
            raise IncompleteReadError(actual_bytes=first, expected_bytes=last + 1)
        except (HTTPClientError, IncompleteReadError):
            if number + 1 == _TRIES:
                raise
        pause(_PAUSE_SECONDS * 2**number)


def _write_range(file: int, first: int, last: int, of: dict[str, Any], client: Any) -> int:
    """Write what comes of a range; return where it ends. Raises OtherObjectError for another object's."""
    same = {"VersionId": of["version_id"]} if of["version_id"] else {"IfMatch": of["etag"]}
    asked = {"Bucket": of["bucket"], "Key": of["key"], "Range": f"bytes={first}-{last}", **same}
    try:
        answer = client.get_object(**asked)
    except Exception as error:
        if error_code(error) == "InvalidRange":  # it is shorter
            raise OtherObjectError from error
        raise
    if answer.get("ContentRange") != f"bytes {first}-{last}/{of['size']}":
        raise OtherObjectError
    if of["version_id"] and answer.get("VersionId", of["version_id"]) != of["version_id"]:
        raise OtherObjectError
    for block in answer["Body"].iter_chunks(_BLOCK_BYTES):
        block = block[: last + 1 - first]
        while block:
            written = os.pwrite(file, block, first)
            first, block = first + written, block[written:]
    return first
