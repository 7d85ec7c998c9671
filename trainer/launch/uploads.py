"""Upload files of the desk, unless the bucket has them: candles to a data set, others by their hash.

An object's sha256 is in its metadata; raw-index/<sha256>.json has the data check's report on candles, so that
a later launch plans without downloading them (`launch/inputs` reads both). A script's data and the
model that a job starts from go to raw/.files/<sha256>. No data set's name begins with a dot, so none has it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from trainer.aws.access import Access, aws_errors, error_code
from trainer.aws.objects import Objects
from trainer.aws.parts import Moved
from trainer.aws.transfer import CHANGED, LARGEST_OBJECT_BYTES, put_file, send_file, several_at_once
from trainer.base.errors import DataError
from trainer.job.job import Job
from trainer.job.start_model import StartModel, start_model_of
from trainer.launch.inputs import RAW, Input, index_key

DATA_PREFIX = f"{RAW}.files/"


@dataclass(frozen=True, kw_only=True)
class DeskFile:
    """A file of the desk, and its relative path in its data set or folder."""

    place: Path
    path: str
    sha256: str
    bytes: int
    summary: Mapping[str, Any] = field(default_factory=dict)  # the data check's report on candles

    def as_input(self, key: str, version_id: str = "") -> Input:
        """Return it as the object of a key; without a version it is not uploaded yet."""
        return Input(
            key=key, version_id=version_id, sha256=self.sha256, bytes=self.bytes, summary=self.summary
        )


def upload_candles(
    files: Sequence[DeskFile],
    access: Access,
    *,
    bucket: str,
    data_set: str,
    there: Mapping[str, Input] | None = None,
    moved: Moved = lambda count: None,
) -> tuple[Input, ...]:
    """Put files into raw/<data_set>/ with their index entries; return them as a run pins them, in the given
    order. `moved` is called with the bytes that are there, as they come, by several threads.

    `there`: what the set has, by name, as it was just listed; without it each key is asked.

    Raises DataError for two files of one name and for a file that is larger than an object can be, before
    anything is uploaded, and for one that changes meanwhile.
    """
    for name, count in Counter(file.path for file in files).items():
        if count > 1:
            why = "a data set keeps one of each name"
            raise DataError(f"{count} files are called {name}", why=why, do="Rename one of them.")
    for file in files:
        refuse_large(file.place, file.bytes)
    by_name = {file.path: file for file in files}
    return _upload(by_name, access, bucket=bucket, folder=f"{RAW}{data_set}/", there=there, moved=moved)


def upload_data(files: Sequence[DeskFile], access: Access, *, bucket: str) -> list[dict[str, Any]]:
    """Put files under their hash; return the entries of the manifest's inputs, with their paths."""
    by_hash = {file.sha256: file for file in files}
    inputs = _upload(by_hash, access, bucket=bucket, folder=DATA_PREFIX)
    sent = {item.sha256: item.pinned() for item in inputs}
    return [{"path": file.path, **sent[file.sha256]} for file in files]


def refuse_large(place: Path, size: int) -> None:
    """Raise DataError for a file that no object can hold."""
    if size > LARGEST_OBJECT_BYTES:
        why = f"an object of S3 holds {LARGEST_OBJECT_BYTES >> 40} TiB"
        raise DataError(f"{place} has {size / 2**30:.1f} GiB", why=why, do="Split it.")


def start_model_file(job: Job) -> DeskFile | None:
    """Return the file that a pinned job's models start from; None without one."""
    start = start_model_of(job)
    if start is None:
        return None
    place = Path(start.path)
    return DeskFile(place=place, path=place.name, sha256=start.sha256, bytes=place.stat().st_size)


def pinned_start_model(start: StartModel, objects: Objects, at_desk: DeskFile | None) -> dict[str, Any]:
    """Return the manifest's entry of the model that a job starts from. Raises DataError if neither the
    bucket nor the desk, from which it will be uploaded, has it.
    """
    key = f"{DATA_PREFIX}{start.sha256}"
    stored = objects.head(key=key) if start.sha256 else None
    if stored is None and at_desk is not None:
        return at_desk.as_input(key).pinned()
    if stored is None:
        why = f"there is no {key}" if start.sha256 else "the job does not pin it"
        do = "Launch, or publish, from a desk that has it."
        raise DataError(f"the {start.noun} {start.path} is not in the bucket", why=why, do=do)
    return Input(key=key, version_id=stored.version_id, sha256=start.sha256, bytes=stored.size).pinned()


def _upload(
    files: Mapping[str, DeskFile],
    access: Access,
    *,
    bucket: str,
    folder: str,
    there: Mapping[str, Input] | None = None,
    moved: Moved = lambda count: None,
) -> tuple[Input, ...]:
    """Upload files by name, several at a time, each unless its key has its bytes; return their objects."""
    client = access.client("s3", timeout_seconds=120.0)
    one = partial(_upload_one, client, bucket, there)
    tasks = [partial(one, f"{folder}{name}", file) for name, file in files.items()]
    with aws_errors(f"cannot upload data to s3://{bucket}/{folder}"):
        return tuple(several_at_once(tasks, moved=moved))


def _upload_one(
    client: Any, bucket: str, there: Mapping[str, Input] | None, key: str, file: DeskFile, moved: Moved
) -> Input:
    if file.summary:
        index = index_key(file.sha256, file.summary.get("told", ()))
        body = json.dumps(file.summary, indent=1).encode()
        client.put_object(Bucket=bucket, Key=index, Body=body, ContentType="application/json")
    from botocore.exceptions import ClientError  # late, like boto3 itself

    known = there.get(file.path) if there is not None else None
    if known is not None and known.sha256 == file.sha256:
        moved(file.bytes)
        return file.as_input(key, known.version_id)
    put = put_file if there is None else send_file
    try:
        version_id = put(file.place, key, file.sha256, client, bucket=bucket, moved=moved)
    except ClientError as error:
        if error_code(error) in CHANGED:
            do = "Try again, once nothing writes it."
            raise DataError(f"{file.place} changed while it was uploaded", do=do) from error
        raise
    return file.as_input(key, version_id)
