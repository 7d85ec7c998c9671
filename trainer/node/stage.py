"""Fetch the manifest's inputs by VersionId, from the stack's cache if it has one, else from S3; check each
sha256.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from botocore.exceptions import BotoCoreError, ClientError

from trainer.base.errors import DataError, Stopped, TrainerError, TrainingFailed
from trainer.node.cache import CacheUnusable, InputCache, cacheable
from trainer.runs.manifest import ManifestInput
from trainer.runs.reports import INPUT_COUNTS

log = logging.getLogger(__name__)
# Seconds between reads of an object that a launch has written. Half a minute in all: for 15 minutes after a
# bucket's versioning is enabled, S3 may answer 404 for an object that exists (S3 User Guide, "Enabling
# versioning", read 2026-11-22).
PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
Read = TypeVar("Read")
AT_ONCE = 8
BLOCK_BYTES = 1 << 20
SPARE_BYTES = 1 << 30  # for models, logs and torch's caches


@dataclass(kw_only=True)
class Origins:
    """Counts of a node's inputs from the cache and from S3, in files and bytes, and why the cache was not
    used.
    """

    cache: InputCache | None = None
    cache_failed: str = ""
    kept: bool = False  # whether existing files with the manifest's bytes are used
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(INPUT_COUNTS, 0))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, **more: int) -> None:
        """Add to the counts."""
        with self._lock:
            for name, number in more.items():
                self.counts[name] += number

    def fail(self, error: CacheUnusable) -> None:
        """Stop using the cache."""
        with self._lock:
            if self.cache is not None:
                log.warning("the cache is not used any more, inputs come from S3: %s", error)
            self.cache, self.cache_failed = None, str(error)

    @property
    def summary(self) -> str:
        """Return the counts in one line."""
        counts = self.counts
        cached = (
            f", {counts['cache_files']} from the cache, {counts['cache_refused']} refused there"
            if self.cache
            else ""
        )
        return f"{counts['s3_files']} files from S3{cached}"

    def to_dict(self) -> dict[str, Any]:
        """Return the counts and the note for the node's result."""
        return {**self.counts, "cache_failed": self.cache_failed}


def fetch_inputs(
    s3: Any,
    *,
    bucket: str,
    inputs: Sequence[ManifestInput],
    folder: Path,
    stopped: Callable[[], bool],
    origins: Origins | None = None,
) -> None:
    """Fetch the objects that the manifest pins into `folder`, eight at once, each named by its hash.

    With `origins`, the cache is tried first and filled from S3, and sources are counted. Raises DataError for
    a file that S3 does not return or whose sha256 is not the manifest's, TrainingFailed if the disk is too
    small, and Stopped once `stopped` returns true. After an error no other file is begun.
    """
    folder.mkdir(parents=True, exist_ok=True)
    origins = origins or Origins()
    objects = {entry.stored_as: entry for entry in inputs}.values()  # one may be wanted in several places
    _check_space(objects, folder, origins)
    failed = threading.Event()

    def fetch(entry: ManifestInput) -> None:
        if failed.is_set():
            return
        try:
            _fetch(s3, bucket, entry, folder, stopped, origins)
        except BaseException:  # whatever it is: it ends the run
            failed.set()
            raise

    with ThreadPoolExecutor(AT_ONCE) as pool:
        jobs = [pool.submit(fetch, entry) for entry in objects]
        for job in jobs:
            job.result()
    if origins.cache and origins.counts["cache_added"]:
        origins.cache.prune()


def _check_space(inputs: Collection[ManifestInput], folder: Path, origins: Origins) -> None:
    """Raise TrainingFailed if the disk is too small for the inputs; files that lie there take no more
    of it.
    """
    there = (
        {path.name: path.stat().st_size for path in folder.iterdir() if path.is_file()}
        if origins.kept
        else {}
    )
    needed = sum(max(0, entry.bytes - there.get(entry.stored_as, 0)) for entry in inputs)
    free = shutil.disk_usage(folder).free
    if needed + SPARE_BYTES > free:
        raise TrainingFailed(
            f"the inputs take {needed / 2**30:.1f} GiB, {folder} has {free / 2**30:.1f} GiB free",
            do=(
                "Free some space, or set MAYFLY_HOME to a folder on another disk."
                if origins.kept
                else "Choose a type with local disks, or raise volume_gib and `pulumi up`."
            ),
        )


def read_patiently(
    read: Callable[[], Read],
    key: str,
    *,
    stopped: Callable[[], bool],
    pause: Callable[[float], None] = time.sleep,
) -> Read:
    """Read an object that a launch has written, retrying after PAUSES if S3 fails. Raises Stopped, or
    botocore's error.
    """
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


def _fetch(
    s3: Any, bucket: str, entry: ManifestInput, folder: Path, stopped: Callable[[], bool], origins: Origins
) -> None:
    if stopped():
        raise Stopped(f"stopped while fetching {entry.key}")
    target = folder / entry.stored_as
    if origins.kept and _lies_there(target, entry.sha256):
        return
    if _taken(entry, target, origins):
        return
    try:
        sha256 = read_patiently(lambda: _download(s3, bucket, entry, target), entry.key, stopped=stopped)
    except (ClientError, BotoCoreError) as error:
        raise _unreadable(entry, str(error)) from error
    if entry.sha256 and sha256 != entry.sha256:  # a prepare run's input may have no hash on record yet
        raise _unreadable(entry, f"its sha256 is {sha256}, the manifest says {entry.sha256}")
    origins.count(s3_files=1, s3_bytes=target.stat().st_size)
    if (cache := origins.cache) and cacheable(entry):
        try:
            cache.add(entry, target)
            origins.count(cache_added=1)
        except CacheUnusable as unusable:
            origins.fail(unusable)


def _taken(entry: ManifestInput, target: Path, origins: Origins) -> bool:
    """Copy an input from the cache; return whether it was there with the manifest's bytes."""
    if not (cache := origins.cache) or not cacheable(entry):
        return False
    try:
        taken = cache.take(entry, target)
    except CacheUnusable as error:
        origins.fail(error)
        return False
    if taken == "taken":
        origins.count(cache_files=1, cache_bytes=entry.bytes)
    if taken == "refused":
        origins.count(cache_refused=1)
        log.warning(
            "the cache has other bytes for %s (version %s): fetching it from S3",
            entry.key,
            entry.version_id,
        )
    return taken == "taken"


def _lies_there(target: Path, sha256: str) -> bool:
    if not sha256 or target.is_symlink() or not target.is_file():
        return False
    with target.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == sha256


def _download(s3: Any, bucket: str, entry: ManifestInput, target: Path) -> str:
    digest = hashlib.sha256()
    version = {"VersionId": entry.version_id} if entry.version_id else {}  # a plan has one version
    answer = s3.get_object(Bucket=bucket, Key=entry.key, **version)
    with target.open("wb") as file:
        for block in answer["Body"].iter_chunks(BLOCK_BYTES):
            digest.update(block)
            file.write(block)
    return digest.hexdigest()


def _unreadable(entry: ManifestInput, why: str) -> TrainerError:
    version = f" (version {entry.version_id})" if entry.version_id else ""
    return DataError(
        f"input {entry.key}{version} can't be used", why=why, do="Upload it again, and launch again."
    )
