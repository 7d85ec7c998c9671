"""The data sets of a bucket, raw/<set>/: their files as they are now, as they were at a time, or as a run
read them; the download of one version.

The bucket keeps every version of a file, for as many days as its lifecycle says.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from trainer.aws.access import Access, aws_errors, error_code
from trainer.aws.error_codes import NO_OBJECT
from trainer.aws.objects import Objects, Stored, stored_of
from trainer.aws.parts import Moved
from trainer.aws.transfer import fetch_file
from trainer.base.errors import ConfigError, DataError, TrainerError, UsageError, nearest
from trainer.base.strict_json import Unsound
from trainer.base.symbols import file_flaw
from trainer.base.text import counted
from trainer.launch.inputs import PARALLEL, RAW, Input, described, hash_of
from trainer.runs.manifest import read_manifest
from trainer.runs.store import manifest_key, read_record


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """A data set: the number of its files, their bytes together, and when the newest was stored."""

    name: str
    files: int
    bytes: int
    stored_at: datetime


@dataclass(frozen=True, kw_only=True)
class SetFile:
    """A file of a data set in one version; how many there are of it."""

    input: Input
    versions: int = 1

    @property
    def name(self) -> str:
        """Return its name in the set."""
        return self.input.key.rpartition("/")[2]

    @property
    def bars(self) -> int:
        """Return the number of its bars, 0 if no data check has described it."""
        return sum(int(held["bars"]) for held in self.input.summary.get("holds", ()))


def list_sets(objects: Objects) -> tuple[DataSet, ...]:
    """Return the data sets of the bucket, by name."""
    found: dict[str, list[Stored]] = {}
    for item in objects.list(prefix=RAW):
        name, _, file = item.key.removeprefix(RAW).partition("/")
        if file and not name.startswith(".") and not file_flaw(file):
            found.setdefault(name, []).append(item)
    return tuple(
        DataSet(
            name=name,
            files=len(items),
            bytes=sum(item.size for item in items),
            stored_at=max(item.modified_at for item in items),
        )
        for name, items in sorted(found.items())
    )


def files_at(objects: Objects, data_set: str, at: datetime | None) -> tuple[SetFile, ...]:
    """Return the files of a data set, now or as of a time, by name, without hashes and index entries. Raises
    DataError if there were none.
    """
    prefix = f"{RAW}{data_set}/"
    of_key: dict[str, list[Stored]] = {}
    for version in objects.history(prefix=prefix):
        if not file_flaw(version.key.removeprefix(prefix)):
            of_key.setdefault(version.key, []).append(version)
    newest: list[SetFile] = []
    for versions in of_key.values():
        until = [version for version in versions if at is None or version.modified_at <= at]
        if until and not until[0].deleted:  # the newest first
            one, count = until[0], sum(not version.deleted for version in versions)
            item = Input(key=one.key, version_id=one.version_id, sha256="", bytes=one.size)
            newest.append(SetFile(input=item, versions=count))
    if not newest:
        raise _no_files(objects, data_set, at)
    return tuple(sorted(newest, key=lambda file: file.input.key))


def files_of_run(objects: Objects, run_id: str, data_set: str = "") -> tuple[SetFile, ...]:
    """Return the files of data sets that a run read, in the versions that its manifest pins; of one set if it
    is named; without index entries. Raises DataError if there are none, UsageError for no such run,
    ConfigError for a manifest that can't be read.
    """
    if (stored := objects.get(key=manifest_key(run_id))) is None:
        read_record(objects, run_id)  # says which runs there are
    try:
        pinned = read_manifest(stored.body).inputs if stored else ()
    except Unsound as error:
        what, do = f"cannot read the manifest of run {run_id}", "Name another run, or a time."
        raise ConfigError(what, why=str(error), do=do) from error
    prefix = f"{RAW}{data_set}/" if data_set else RAW
    read = [item for item in pinned if item.key.startswith(prefix) and not item.key.startswith(f"{RAW}.")]
    if not read:
        what = f"run {run_id} read nothing of {prefix}"
        raise DataError(what, do="Name another run, or another set.")
    items = [
        Input(key=item.key, version_id=item.version_id, sha256=item.sha256, bytes=item.bytes) for item in read
    ]
    files = [SetFile(input=item) for item in items]
    return tuple(sorted(files, key=lambda file: file.input.key))


class Pinned(Protocol):
    """A version of an object, by its hash."""

    @property
    def key(self) -> str: ...
    @property
    def version_id(self) -> str: ...
    @property
    def sha256(self) -> str: ...
    @property
    def bytes(self) -> int: ...


def fetch_version(
    access: Access, objects: Objects, bucket: str, item: Pinned, path: Path, moved: Moved
) -> None:
    """Download a version, whose hash is in S3's answer if `item` lacks it. Raises ConfigError if its
    bytes have another, DataError if it is gone, and a TrainerError if S3 does not give it.
    """
    client, expected = access.client("s3", timeout_seconds=120.0), item.sha256

    def read_hash(answer: dict[str, Any]) -> str:
        nonlocal expected
        expected = expected or hash_of(stored_of(item.key, answer), objects)
        return expected

    try:
        with aws_errors(f"cannot read s3://{bucket}/{item.key}"):
            named = (item.key, item.version_id, read_hash)
            sha256 = fetch_file(path, *named, client, bucket=bucket, size=item.bytes, moved=moved)
    except TrainerError as error:
        if error.__cause__ and error_code(error.__cause__) in NO_OBJECT:
            do = "Take the set as it is now, or as of a later time: mayfly data pull --at 2026-11-20T14:30Z."
            raise DataError(f"{item.key} is gone", why="the bucket has ended this version", do=do) from error
        raise
    if expected and sha256 != expected:
        why = f"sha256 is {sha256}, it should be {expected}"
        raise ConfigError(f"{item.key} is damaged", why=why, do="Take the set as of another time: --at.")


def set_of(files: Sequence[SetFile]) -> str:
    """Return the data set of a run's files. Raises UsageError if they are of several."""
    names = sorted({file.input.key.removeprefix(RAW).partition("/")[0] for file in files})
    if len(names) > 1:
        do = "Name one."
        raise UsageError(f"the run read {counted(len(names), 'data set')}", why=", ".join(names), do=do)
    return names[0]


def with_details(objects: Objects, files: Iterable[SetFile]) -> tuple[SetFile, ...]:
    """Return files with their hashes and index entries; none of those that are gone."""

    def one(file: SetFile) -> SetFile | None:
        known = described(file.input.key, objects, file.input.version_id, told=None)
        return None if known is None else replace(file, input=known)

    with ThreadPoolExecutor(max_workers=PARALLEL) as pool:
        return tuple(file for file in pool.map(one, files) if file is not None)


def _no_files(objects: Objects, data_set: str, at: datetime | None) -> DataError:
    names = [one.name for one in list_sets(objects)]
    then = f" at {at:%Y-%m-%d %H:%M} UTC" if at else ""
    what, why = f"there is no data set '{data_set}'{then}", f"{RAW}{data_set}/ in the bucket is empty"
    if data_set in names:
        return DataError(what, why="it has no file from that time", do="Take a later one, or leave it out.")
    do = nearest(data_set, names) or (f"There are: {', '.join(names[:12])}." if names else "")
    return DataError(what, why=why, do=do or "Push one: mayfly data push PATH.")
