"""Back a local folder up to the bucket under backup/, and restore it.

backup/files/<path> holds each file, whose earlier versions S3 keeps; backup/index.json names path, size,
SHA-256 and version of all, and changes by compare-and-swap. A backup deletes nothing. Everything read from
the bucket is checked as untrusted.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from trainer.aws.access import Access, aws_error, error_code
from trainer.aws.error_codes import NO_OBJECT
from trainer.aws.folder_bucket import SCRIPT_DATA, key_flaw
from trainer.aws.objects import Conflict, Objects
from trainer.aws.transfer import CHANGED, LARGEST_OBJECT_BYTES, fetch_file, put_file
from trainer.base.errors import ConfigError, DataError, UsageError
from trainer.base.files import open_plain
from trainer.base.strict_json import Unsound, read_object

INDEX, FILES = "backup/index.json", "backup/files/"
FORMAT = 1
MOST_FILES = 100_000
MOST_INDEX_BYTES = 64 << 20
MOST_PATH = 900  # bytes of a path below the folder: S3's keys have 1,024
SAVE_EVERY = 200  # files; an interrupted backup continues from there, and uploads nothing twice
_TRIES = 5  # tries to save the index against other desks
_OTHER_VERSIONS = "Its other versions are in the bucket: aws s3api list-object-versions."


@dataclass(frozen=True, kw_only=True)
class BackedUp:
    """One file as the index has it."""

    bytes: int
    sha256: str
    version_id: str


@dataclass(kw_only=True)
class BackupReport:
    """The result of a backup or a restore, by path below the folder."""

    moved: list[str] = field(default_factory=list)  # uploaded or restored
    moved_bytes: int = 0
    unchanged: int = 0
    # Files that differ from the backup: skipped by a restore.
    differing: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)  # path -> why
    # Path -> why; the others were backed up or restored all the same.
    failed: dict[str, str] = field(default_factory=dict)


def back_up(
    folder: Path, access: Access, objects: Objects, *, bucket: str, on_file: Callable[[str], None]
) -> BackupReport:
    """Upload and index the files that the backup lacks, by SHA-256. Raises UsageError for too many files in
    folder or index.

    `on_file` receives each path before its upload. The next backup continues an interrupted one without
    repeating uploads.
    """
    report, known, added = BackupReport(), read_index(objects), dict[str, BackedUp]()
    paths = list(_plain_files(folder, report))
    if len(paths) > MOST_FILES:
        raise UsageError(f"{folder} holds more than {MOST_FILES:,} files", do="Back up smaller folders.")
    _refuse_large_index(known.keys() | set(paths))
    client = access.client("s3", timeout_seconds=120.0)
    try:
        for name in paths:
            try:
                size, sha256 = _measure(folder / name)
                if (entry := known.get(name)) and entry.sha256 == sha256:
                    report.unchanged += 1
                    continue
                if size > LARGEST_OBJECT_BYTES:
                    report.skipped[name] = "larger than an object of S3"
                    continue
                on_file(name)
                version = _uploaded(client, folder / name, f"{FILES}{name}", sha256, bucket=bucket)
            except (OSError, DataError) as error:
                if not os.path.lexists(folder / name):
                    continue  # it is gone since the folder was listed
                report.failed[name] = str(error.strerror) if isinstance(error, OSError) else error.what
                continue
            added[name] = BackedUp(bytes=size, sha256=sha256, version_id=version)
            report.moved.append(name)
            report.moved_bytes += size
            if len(added) % SAVE_EVERY == 0:
                add_to_index(objects, added)
    finally:
        if added:
            add_to_index(objects, added)
    return report


def restore(
    folder: Path,
    access: Access,
    objects: Objects,
    *,
    bucket: str,
    overwrite: bool,
    on_file: Callable[[str], None],
) -> BackupReport:
    """Download the files that the folder lacks, by version and SHA-256; files that differ are replaced only
    with `overwrite`.

    A file whose bytes are not the index's is not written; one that can't be written stops no other. Raises
    UsageError if there is no backup.
    """
    index = read_index(objects)
    if not index:
        raise UsageError(
            "there is no backup to restore",
            why=f"{INDEX} names no file",
            do="Make one: mayfly backup FOLDER.",
        )
    folder.mkdir(parents=True, exist_ok=True)
    report, root = BackupReport(), folder.resolve()
    client = access.client("s3", timeout_seconds=120.0)
    for name, entry in sorted(index.items()):
        try:
            if _is_wanted(name, entry, root, report, overwrite=overwrite):
                on_file(name)
                _fetch(client, name, entry, root / name, bucket=bucket)
                report.moved.append(name)
                report.moved_bytes += entry.bytes
        except DataError as error:
            report.failed[name] = str(error.why)
        except OSError as error:
            report.failed[name] = str(error.strerror)
    return report


def _is_wanted(name: str, entry: BackedUp, root: Path, report: BackupReport, *, overwrite: bool) -> bool:
    """Return whether to restore a file; else report why not. Raises OSError for a path that can't be used."""
    path = root / name
    if _leads_out(path, root):
        report.skipped[name] = "a link is in its place"
    elif path.is_dir():
        report.skipped[name] = "a folder is in its place"
    elif not path.exists():
        return True
    elif _measure(path) == (entry.bytes, entry.sha256):
        report.unchanged += 1
    elif overwrite:
        return True
    else:
        report.differing.append(name)
    return False


def read_index(objects: Objects) -> dict[str, BackedUp]:
    """Return the backed up files, by path. Raises ConfigError for a malformed index."""
    return _read(objects)[0]


def add_to_index(objects: Objects, added: Mapping[str, BackedUp]) -> None:
    """Add files to the index by compare-and-swap. Raises ConfigError if it loses every race."""
    for _ in range(_TRIES):
        known, etag = _read(objects)
        _refuse_large_index(known.keys() | added.keys())
        files = [{"file": name, **asdict(entry)} for name, entry in sorted({**known, **added}.items())]
        body = json.dumps({"format": FORMAT, "files": files}, separators=(",", ":")).encode()
        with suppress(Conflict):
            objects.put(key=INDEX, body=body, if_match=etag, create=not etag)
            return
    raise ConfigError(
        f"{INDEX} could not be written", why="another desk is backing up", do="Run the backup again."
    )


def _refuse_large_index(names: Set[str]) -> None:
    """Raise UsageError if the index, which keeps files that are gone, would name more than `_read`
    accepts.
    """
    if len(names) > MOST_FILES:
        what = f"{INDEX} would name more than {MOST_FILES:,} files"
        later = "the next backup makes a new one, and sends no file twice"
        do = f"Copy it elsewhere in the bucket and delete it: {later}."
        raise UsageError(what, why="it keeps files of all folders", do=do)


def _read(objects: Objects) -> tuple[dict[str, BackedUp], str]:
    stored = objects.get(key=INDEX)
    if stored is None:
        return {}, ""
    try:
        fields = read_object(stored.body, most_bytes=MOST_INDEX_BYTES, name="the backup's index")
        if (version := fields.whole("format")) != FORMAT:
            raise Unsound(f"it has format {version}")
        files = {}
        for row in fields.rows("files", most=MOST_FILES):
            name = row.text("file", most=MOST_PATH)
            if why := key_flaw(name, most_bytes=MOST_PATH):
                raise Unsound(f"{name[:120]!r} is not a path: {why}")
            files[name] = BackedUp(
                bytes=row.whole("bytes", most=LARGEST_OBJECT_BYTES),
                sha256=row.value("sha256").sha256(),
                version_id=row.text("version_id", most=1024),
            )
    except Unsound as error:
        do = "Restore an earlier version of it: aws s3api list-object-versions."
        raise ConfigError(f"{INDEX} can't be read", why=str(error), do=do) from error
    return files, stored.etag


def _plain_files(folder: Path, report: BackupReport) -> Iterator[str]:
    """Yield the paths of plain files below a folder, in order, and note skipped ones and folders that can't
    be read; no link is followed. Of hidden folders only the one of scripts' data in a bucket is read.
    """

    def is_hidden(path: Path) -> bool:
        return path.name.startswith(".") and path != folder / SCRIPT_DATA

    def fail(error: OSError) -> None:
        report.failed[Path(error.filename).relative_to(folder).as_posix()] = str(error.strerror)

    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}", do="Name the folder to back up.")
    for place, folders, files in os.walk(folder, onerror=fail):
        folders.sort()
        for name in [*folders, *sorted(files)]:
            path = Path(place, name)
            relative = path.relative_to(folder).as_posix()
            try:
                mode = path.lstat().st_mode
            except FileNotFoundError:
                continue  # it is gone since the folder was listed
            if is_hidden(path):
                report.skipped[relative] = "its name begins with a dot"
            elif stat.S_ISLNK(mode):
                report.skipped[relative] = "it is a link"
            elif name in folders:
                continue
            elif not stat.S_ISREG(mode):
                report.skipped[relative] = "it is not a plain file"
            elif why := key_flaw(relative, most_bytes=MOST_PATH):
                report.skipped[relative] = why
            else:
                yield relative
        folders[:] = [name for name in folders if not is_hidden(Path(place, name))]


def _measure(path: Path) -> tuple[int, str]:
    """Return size and SHA-256 of a file."""
    with open_plain(path) as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return file.tell(), digest


def _uploaded(client: Any, path: Path, key: str, sha256: str, *, bucket: str) -> str:
    """Return the version of a file in the bucket, which S3 has checked. Raises DataError for one that changes
    meanwhile.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        return put_file(path, key, sha256, client, bucket=bucket)
    except (BotoCoreError, ClientError) as error:
        if error_code(error) in CHANGED:
            raise DataError(f"{path} changed while it was backed up", do="Run the backup again.") from error
        raise aws_error(error, f"cannot back up {path} to s3://{bucket}/{key}") from error


def _leads_out(path: Path, root: Path) -> bool:
    """Return whether a path below the root is, or passes through, a symbolic link."""
    return any(
        place.is_symlink() for place in (path, *path.parents) if place.is_relative_to(root) and place != root
    )


def _fetch(client: Any, name: str, entry: BackedUp, path: Path, *, bucket: str) -> None:
    """Write one file, if its bytes are those of the index. Raises DataError otherwise."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        known: Any = {"bucket": bucket, "size": entry.bytes}
        sha256 = fetch_file(path, f"{FILES}{name}", entry.version_id, entry.sha256, client, **known)
    except (BotoCoreError, ClientError) as error:
        if error_code(error) in NO_OBJECT:
            why = f"version {entry.version_id} is not in the bucket any more"
            raise DataError(f"{name} can't be restored", why=why, do=_OTHER_VERSIONS) from error
        raise aws_error(error, f"cannot restore {name}") from error
    if sha256 != entry.sha256:
        why = f"its sha256 is {sha256}, the index says {entry.sha256}"
        raise DataError(f"{name} can't be restored", why=why, do=_OTHER_VERSIONS)
