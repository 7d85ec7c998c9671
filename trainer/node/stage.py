"""Download from S3 what the manifest pins, inputs by VersionId, and check each sha256."""

from __future__ import annotations

import hashlib
import logging
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from botocore.exceptions import BotoCoreError, ClientError

from trainer.errors import DataError, Stopped, TrainerError, TrainingFailed

log = logging.getLogger(__name__)
# Seconds between two reads of an object that a launch has written. Half a minute in all: in the first quarter of an hour of a
# bucket's versioning S3 may answer 404 for what is there (S3 User Guide, "Enabling versioning", read 2026-11-22).
PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
Read = TypeVar("Read")
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


def read_patiently(
    read: Callable[[], Read], key: str, *, stopped: Callable[[], bool], pause: Callable[[float], None] = time.sleep
) -> Read:
    """Read an object that a launch has written, again after PAUSES where S3 fails. Raises Stopped, or botocore's error."""
    for seconds in (*PAUSES, None):
        if stopped():
            raise Stopped(f"stopped while fetching {key}")
        try:
            return read()
        except (ClientError, BotoCoreError) as error:
            if seconds is None:
                raise
            log.warning("%s is read again in %.1f s: %s", key, seconds, error)
            pause(seconds)
    raise AssertionError("the last try returns or raises")


def _fetch(s3: Any, bucket: str, entry: dict[str, Any], folder: Path, stopped: Callable[[], bool]) -> None:
    target = folder / PurePosixPath(entry["key"]).name
    try:
        sha256 = read_patiently(lambda: _download(s3, bucket, entry, target), entry["key"], stopped=stopped)
    except (ClientError, BotoCoreError) as error:
        raise _unreadable(entry, str(error)) from error
    if entry["sha256"] and sha256 != entry["sha256"]:  # a prepare run's input may have no hash on record yet
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
