"""Upload candles from the desk to a data set in the bucket, raw/<set>/, unless they exist. The only boto3 in
`data`.

An object's sha256 is in its metadata; raw-index/<sha256>.json has the data check's report on that file, so
that a later launch plans without downloading it (`launch/inputs` reads both).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from trainer.aws.access import Access, aws_errors
from trainer.aws.transfer import LARGEST_PUT_BYTES, put_file
from trainer.base.errors import DataError
from trainer.launch.inputs import INDEX, RAW

_PARALLEL = 8


@dataclass(frozen=True, kw_only=True)
class LocalFile:
    """A file that the data check has read: its path, hash and content."""

    path: Path
    file: str  # its name in the data set
    sha256: str
    bytes: int
    summary: dict[str, Any]


def upload(files: Sequence[LocalFile], access: Access, *, bucket: str, data_set: str) -> list[dict[str, Any]]:
    """Put files into raw/<data_set>/, each under its flat name; skip those that exist with the same hash.

    Returns {"key", "version_id", "sha256", "bytes"} of each, in the given order. Raises DataError for two
    files of one name and for a file above 5 GiB, before anything is uploaded.
    """
    for name, count in Counter(file.file for file in files).items():
        if count > 1:
            why = "a data set keeps one of each name"
            raise DataError(f"{count} files are called {name}", why=why, do="Rename one of them.")
    for file in files:
        if file.bytes > LARGEST_PUT_BYTES:
            why = "one upload takes 5 GiB"
            raise DataError(
                f"{file.path} has {file.bytes} bytes", why=why, do="Split it, by year for example."
            )
    client = access.client("s3", timeout_seconds=120.0)
    one = partial(_upload_one, client=client, bucket=bucket, data_set=data_set)
    failing = f"cannot upload data to s3://{bucket}/{RAW}{data_set}/"
    with aws_errors(failing), ThreadPoolExecutor(_PARALLEL) as pool:
        return list(pool.map(one, files))


def _upload_one(file: LocalFile, *, client: Any, bucket: str, data_set: str) -> dict[str, Any]:
    key = f"{RAW}{data_set}/{file.file}"
    body = json.dumps(file.summary, indent=1).encode()
    client.put_object(
        Bucket=bucket, Key=f"{INDEX}{file.sha256}.json", Body=body, ContentType="application/json"
    )
    version_id = put_file(file.path, key, file.sha256, client, bucket=bucket)
    return {"key": key, "version_id": version_id, "sha256": file.sha256, "bytes": file.bytes}
