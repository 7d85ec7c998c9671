"""Fetch the manifest's inputs by VersionId, from the stack's cache if it has one, else from S3; check each
sha256.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import shutil
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from trainer.aws.access import aws_error, error_code, meaning_of
from trainer.aws.transfer import fetch_file
from trainer.base.errors import DataError, Stopped, TrainerError, TrainingFailed
from trainer.node.shared import Node
from trainer.node.uplink import AWS_ERRORS
from trainer.runs.manifest import ManifestInput

log = logging.getLogger(__name__)
# Seconds between reads of an object that a launch has written. Half a minute in all: for 15 minutes after a
# bucket's versioning is enabled, S3 may answer 404 for an object that exists (S3 User Guide, "Enabling
# versioning", read 2026-11-22).
PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
BLOCK_BYTES = 1 << 20
OUTAGE_SECONDS = 600.0  # below 1.5 times the shortest bound of a boot, after which the node gives itself up
RENEWED = ("ExpiredToken", "ExpiredTokenException", "NoCredentialsError", "CredentialRetrievalError")
Read = TypeVar("Read")
AT_ONCE = 8
SPARE_BYTES = 1 << 30  # for models, logs and torch's caches


def fetch_inputs(node: Node, inputs: Sequence[ManifestInput], folder: Path) -> None:
    """Fetch the objects that the manifest pins into `folder`, eight at once, each named by its hash.

    The cache is tried first and filled from S3. Raises DataError for a file that S3 does not return or whose
    sha256 is not the manifest's, TrainingFailed if the disk is too small, and Stopped once the node is to
    stop. After an error no other file is begun.
    """
    folder.mkdir(parents=True, exist_ok=True)
    origins = node.origins
    objects = {entry.stored_as: entry for entry in inputs}.values()  # one may be wanted in several places
    check_space(node, objects, folder)
    failed = threading.Event()

    def fetch(entry: ManifestInput) -> None:
        if failed.is_set():
            return
        try:
            fetch_one(node, entry, folder / entry.stored_as, stopped=node.is_stopping)
        except BaseException:  # whatever it is: it ends the run
            failed.set()
            raise

    with ThreadPoolExecutor(AT_ONCE) as pool:
        jobs = [pool.submit(fetch, entry) for entry in objects]
        for job in jobs:
            job.result()
    if origins.cache and origins.counts["cache_added"]:
        origins.cache.prune()


def check_space(node: Node, inputs: Collection[ManifestInput], folder: Path) -> None:
    """Raise TrainingFailed if the disk is too small for the inputs; on a machine that keeps files, those that
    lie there take no more of it.
    """
    files = [path for path in folder.iterdir() if path.is_file()] if node.origins.kept else []
    there = {path.name: path.stat().st_size for path in files}
    needed = sum(max(0, entry.bytes - there.get(entry.stored_as, 0)) for entry in inputs)
    free = shutil.disk_usage(folder).free
    if needed + SPARE_BYTES > free:
        what = f"the inputs take {_size(needed)}, {folder} has {_size(free)} free"
        why = f"{_size(SPARE_BYTES)} of it stay free for models, logs and caches"
        raise TrainingFailed(what, why=why, do=node.place.more_disk)


def _size(count: int) -> str:
    return f"{count / 1e6:,.0f} MB" if count < 10e9 else f"{count / 1e9:,.0f} GB"


def read_patiently(
    read: Callable[[], Read],
    key: str,
    *,
    stopped: Callable[[], bool],
    pause: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Read:
    """Read an object that a launch has written, or a secret, retrying after PAUSES if AWS fails, and for
    OUTAGE_SECONDS while it does not answer or refuses everything. Raises Stopped, or botocore's error.
    """
    began, waited = clock(), 0.0
    for seconds in itertools.chain(PAUSES, itertools.repeat(PAUSES[-1])):
        if stopped():
            raise Stopped(f"stopped while fetching {key}")
        try:
            return read()
        except AWS_ERRORS as error:
            over = max(waited, clock() - began) >= OUTAGE_SECONDS
            if over if is_outage(error) else waited >= sum(PAUSES):
                raise
            log.warning("%s is read again in %.1f s: %s", key, seconds, error)
            pause(seconds)
            waited += seconds
    raise AssertionError("a try returns or raises")


def is_outage(error: BaseException) -> bool:
    """Return whether S3 may answer another time as it is: AWS fails or is out of reach, or the machine's
    credentials have expired, which its metadata service renews.
    """
    known = meaning_of(error).error_class in ("throttling", "connection", "unclear")
    return known or error_code(error) in RENEWED


def fetch_one(node: Node, entry: ManifestInput, target: Path, *, stopped: Callable[[], bool]) -> None:
    """Fetch one object to `target`, whole and with its hash. Raises as `fetch_inputs` does."""
    if stopped():
        raise Stopped(f"stopped while fetching {entry.key}")
    origins = node.origins
    node.moved()
    if (origins.kept and _lies_there(target, entry.sha256)) or origins.take(entry, target):
        return
    try:
        sha256 = read_patiently(lambda: _download(node, entry, target, stopped), entry.key, stopped=stopped)
    except AWS_ERRORS as error:
        if is_outage(error):
            raise aws_error(error, f"input {entry.key} can't be read") from error
        raise _unreadable(entry, str(error)) from error
    if entry.sha256 and sha256 != entry.sha256:  # a prepare run's input may have no hash on record yet
        raise _unreadable(entry, f"its sha256 is {sha256}, the manifest says {entry.sha256}")
    origins.count(s3_files=1, s3_bytes=target.stat().st_size)
    origins.add(entry, target)


def _lies_there(target: Path, sha256: str) -> bool:
    if not sha256 or target.is_symlink() or not target.is_file():
        return False
    with target.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == sha256


def _download(node: Node, entry: ManifestInput, target: Path, stopped: Callable[[], bool]) -> str:
    def moved(count: int) -> None:
        if stopped():
            raise Stopped(f"stopped while fetching {entry.key}")
        node.moved()

    known: Any = {"bucket": node.uplink.bucket, "size": entry.bytes, "moved": moved}
    return fetch_file(target, entry.key, entry.version_id, entry.sha256, node.uplink.s3, **known)


def _unreadable(entry: ManifestInput, why: str) -> TrainerError:
    version = f" (version {entry.version_id})" if entry.version_id else ""
    return DataError(
        f"input {entry.key}{version} can't be used", why=why, do="Upload it again, and launch again."
    )
