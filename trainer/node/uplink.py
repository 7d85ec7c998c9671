"""Uploads of a node: heartbeat, log parts, metrics parts, files, the result. Owns retries, not contents.

A heartbeat or a part that S3 refuses is tried again with the next one and never ends a command; callers try a
file again until they give up.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from botocore.exceptions import BotoCoreError, ClientError

from trainer.aws.access import Access, error_code, version_of
from trainer.aws.error_codes import LOST_RACE, NO_OBJECT
from trainer.aws.parts import send_parts
from trainer.aws.transfer import put_whole
from trainer.base.errors import ConnectionFailed, TrainingFailed
from trainer.runs.snapshots import PACK_BYTES
from trainer.runs.store import PART_BYTES

log = logging.getLogger(__name__)
CONTENT_TYPES = {
    ".json": "application/json",
    ".jsonl": "application/x-ndjson",
    ".log": "text/plain; charset=utf-8",
}
RETRY_SECONDS = 2.0
WHOLE_BYTES = PACK_BYTES  # up to here a checkpoint's object is one request
AWS_ERRORS = (ClientError, BotoCoreError)
EXISTS = {"PreconditionFailed", "412"}


class Uplink:
    """The node's access to one bucket. `moved` is called after each file that went up: bytes are progress."""

    moved: Callable[[], None] = staticmethod(lambda: None)

    def __init__(self, access: Access, bucket: str) -> None:
        self.bucket = bucket
        self._access = access
        # With short time-outs: a call that hangs would delay the next heartbeat, and the lease is 150 s.
        self._quick = access.client("s3", total_max_attempts=2, timeout_seconds=10)
        # Callers of this one retry by themselves, and can be stopped between two tries.
        self.s3 = access.client("s3", total_max_attempts=2, timeout_seconds=60)

    def client(self, service: str) -> Any:
        """Return a client of another service than S3."""
        return self._access.client(service)

    def put_file(
        self,
        body: IO[bytes],
        key: str,
        sha256: str,
        size: int,
        *,
        once: bool = False,
        journals: Path | None = None,
    ) -> str:
        """Create an object of an open file's bytes, which S3 checks against their hash; return its VersionId.

        By one request, of 5 GiB at most: only then S3 stores a SHA-256 of its own, and nobody has to take a
        node's word for what it sent. `journals`, a folder, for what is copied before anybody reads it, where
        S3 computes one: a large file goes in parts, and the next try goes on where this one breaks off.

        `once`: raises TrainingFailed if the key has another object. Raises botocore's errors if S3 does not
        accept it now, and NotVersioned.
        """
        if journals is not None and size > WHOLE_BYTES:
            known: Any = {"bucket": self.bucket, "journals": journals, "moved": lambda count: self.moved()}
            # It can't read what it wrote: a lost answer is a lost upload.
            return send_parts(body, key, sha256, size, self.s3, **known, there=lambda: None)
        more: dict[str, Any] = {"ContentLength": size, "ContentType": _content_type(key)}
        more |= {"IfNoneMatch": "*"} if once else {}
        try:
            version_id = put_whole(body, key, sha256, self.s3, bucket=self.bucket, **more)
        except ClientError as error:
            if not once or error_code(error) not in LOST_RACE:
                raise
            # The key exists: with our object, if the answer to an earlier try was lost.
            answer = self.s3.head_object(Bucket=self.bucket, Key=key)
            if answer["Metadata"].get("sha256") != sha256:
                do = "Find out who wrote it: only the run itself should write its keys."
                raise TrainingFailed(f"{key} exists with other content", do=do) from error
            version_id = version_of(answer, f"s3://{self.bucket}/{key}")
        self.moved()
        return version_id

    def create(self, body: bytes, key: str) -> None:
        """Create an object under a key that no other call has named. Raises botocore's errors.

        If the key exists, this is the object: the answer to an earlier try of this call was lost.
        """
        named = {"Bucket": self.bucket, "Key": key, "ContentType": _content_type(key)}
        try:
            self.s3.put_object(**named, Body=body, IfNoneMatch="*")
        except ClientError as error:
            if error_code(error) not in EXISTS:
                raise

    def read(self, key: str) -> bytes:
        """Return an object's bytes. Raises botocore's errors."""
        body: bytes = self.s3.get_object(Bucket=self.bucket, Key=key)["Body"].read()
        return body

    def send(self, key: str, body: bytes, *, patience_seconds: float) -> None:
        """Write an object, retrying for `patience_seconds`. Raises ConnectionFailed if S3 does not accept
        it.
        """
        deadline = time.monotonic() + patience_seconds
        while not self.try_send(key, body):
            if time.monotonic() > deadline:
                why = f"S3 did not take it within {patience_seconds:.0f} s"
                do = "Launch again: what it has sent before is in S3."
                raise ConnectionFailed(f"{key} was not sent", why=why, do=do)
            time.sleep(RETRY_SECONDS)

    def try_send(self, key: str, body: bytes) -> bool:
        """Try once to write an object; return whether S3 accepted it."""
        try:
            kind = _content_type(key)
            self._quick.put_object(Bucket=self.bucket, Key=key, Body=body, ContentType=kind)
        except AWS_ERRORS as error:
            log.warning("%s was not sent, it will be tried again: %s", key, error)
            return False
        return True

    def find(self, key: str) -> bool:
        """Return whether an object exists. Raises botocore's errors if S3 doesn't say."""
        try:
            self._quick.head_object(Bucket=self.bucket, Key=key)
        except ClientError as error:
            # Without the permission to list, S3 answers 403 for a missing key.
            if error_code(error) not in NO_OBJECT | {"403", "AccessDenied"}:
                raise
            return False
        return True

    def exists(self, key: str) -> bool:
        """Return whether an object exists; an error counts as no."""
        try:
            return self.find(key)
        except AWS_ERRORS as error:
            log.warning("%s can't be looked up: %s", key, error)
            return False


class Parts:
    """A growing file, sent as numbered parts of whole lines: <prefix>000001<suffix>, <prefix>000002<suffix>
    ... `read` returns its bytes from an offset on, at most so many.
    """

    def __init__(
        self, uplink: Uplink, *, read: Callable[[int, int], bytes], prefix: str, suffix: str
    ) -> None:
        self._uplink, self._read, self._prefix, self._suffix = uplink, read, prefix, suffix
        self._offset, self._number = 0, 0
        self._refused = b""  # a part without an answer: S3 may have it, and who follows the log has read it
        self._sending = threading.Lock()  # a call may hang while the node ends

    def send(self, *, final: bool = False, go_on: Callable[[], bool] = lambda: True) -> bool:
        """Send the lines added since the last part while `go_on`, which is asked before each part, returns
        true. Return whether S3 has accepted what was sent.

        After a refusal they are kept for the next call, as the same part.
        """
        with self._sending:
            while (body := self._refused or self._next(final)) and go_on():
                if not self._uplink.try_send(f"{self._prefix}{self._number + 1:06d}{self._suffix}", body):
                    self._refused = body
                    return False
                self._refused = b""
                self._offset += len(body)
                self._number += 1
            return True

    def _next(self, final: bool) -> bytes:
        block = self._read(self._offset, PART_BYTES)
        whole_lines = block[: block.rfind(b"\n") + 1]
        # A line longer than a part, or the last one of a writer that died, goes as it is.
        return whole_lines or (block if final or len(block) == PART_BYTES else b"")


def _content_type(key: str) -> str:
    return CONTENT_TYPES.get(Path(key).suffix, "application/octet-stream")
