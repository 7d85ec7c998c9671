"""Download from S3 what the manifest pins, inputs by VersionId, and check each sha256."""

from __future__ import annotations

import hashlib
import logging
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from trainer.errors import DataError, Stopped, TrainerError, TrainingFailed

log = logging.getLogger(__name__)
ATTEMPTS = 4
AT_ONCE = 8
BLOCK_BYTES = 1 << 20
SPARE_BYTES = 1 << 30  # for models, logs and torch's caches


def fetch_inputs(s3: Any, *, bucket: str, inputs: Sequence[dict[str, Any]], folder: Path, stopped: Callable[[], bool]) -> None:
    """Download objects that the manifest pins into `folder`, eight at once, each under the last part of its key.

    Raises DataError for a file whose sha256 is not the manifest's or that S3 doesn't give, TrainingFailed when the disk
    is too small, Stopped as soon as `stopped` says so.
    """
    folder.mkdir(parents=True, exist_ok=True)
    needed, free = sum(int(entry["bytes"]) for entry in inputs), shutil.disk_usage(folder).free
    if needed + SPARE_BYTES > free:
        raise TrainingFailed(
            f"the inputs take {needed / 2**30:.1f} GiB, {folder} has {free / 2**30:.1f} GiB free",
            do="Choose a type with local disks, or raise volume_gib and `pulumi up`.",
        )
    with ThreadPoolExecutor(AT_ONCE) as pool:
        jobs = [pool.submit(_fetch, s3, bucket, entry, folder, stopped) for entry in inputs]
        for job in jobs:
            job.result()


def _fetch(s3: Any, bucket: str, entry: dict[str, Any], folder: Path, stopped: Callable[[], bool]) -> None:
    target = folder / PurePosixPath(entry["key"]).name
    for attempt in range(1, ATTEMPTS + 1):
        if stopped():
            raise Stopped("stopped while fetching inputs")
        try:
            sha256 = _download(s3, bucket, entry, target)
            break
        except (ClientError, BotoCoreError) as error:
            log.warning("%s, try %d: %s", entry["key"], attempt, error)
            if attempt == ATTEMPTS:
                raise _unreadable(entry, str(error)) from error
    if sha256 != entry["sha256"]:
        raise _unreadable(entry, f"its sha256 is {sha256}, the manifest says {entry['sha256']}")


def _download(s3: Any, bucket: str, entry: dict[str, Any], target: Path) -> str:
    digest = hashlib.sha256()
    version = {"VersionId": entry["version_id"]} if entry.get("version_id") else {}  # a plan has one version
    answer = s3.get_object(Bucket=bucket, Key=entry["key"], **version)
    with target.open("wb") as file:
        for block in answer["Body"].iter_chunks(BLOCK_BYTES):
            digest.update(block)
            file.write(block)
    return digest.hexdigest()


def _unreadable(entry: dict[str, Any], why: str) -> TrainerError:
    version = f" (version {entry['version_id']})" if entry.get("version_id") else ""
    return DataError(f"input {entry['key']}{version} can't be used", why=why, do="Upload it again, and launch again.")
