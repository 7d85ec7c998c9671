"""A bucket of the embedded AWS: a folder bucket that keeps every version, over restarts too.

A version is a file of its bytes and a JSON beside it, both put in place by rename; what a killed server left
half written is no version. The server alone writes the folder, and holds what the JSONs say in memory.

    <folder>/000000001          bytes of a version; a marker of a deletion has none
    <folder>/000000001.json     its key, id, hash, time and metadata
"""

from __future__ import annotations

import json
import secrets
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from trainer.aws.folder_bucket import FolderBucket, ObjectVersion
from trainer.base.files import whole_file
from trainer.base.instants import from_iso, iso, utc_now
from trainer.rehearsal.home import reading

_FACTS = ("key", "version_id", "sha256", "size", "metadata", "checksummed")
UNVERSIONED = "null"  # S3's id of a version in a bucket without versioning


@dataclass(frozen=True, kw_only=True)
class KeptVersion(ObjectVersion):
    """A version of an object, and the number of its file."""

    number: int


class KeptBucket(FolderBucket):
    """One bucket, with any key, versions and deletions."""

    durable = False

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.versioned = False
        self._lock = threading.RLock()
        self._versions: dict[str, list[KeptVersion]] = {}  # by key, the newest first
        self._next = 1
        folder.mkdir(parents=True, exist_ok=True)

    def restore(self, now: datetime, days: Sequence[tuple[str, int]] = (), *, upload_days: int = 0) -> None:
        """Read what an earlier server left. Versions that were replaced more days ago than `days` has for
        their prefix are deleted, and uploads that began more than `upload_days` ago, if not 0. Raises
        ConfigError for a file that can't be read.
        """
        for path in self.folder.glob(".new-*"):
            path.unlink()
        if upload_days:
            self._uploads.forget_old(now - timedelta(days=upload_days))
        for path in sorted(self.folder.glob("*.json")):
            with reading(path):
                version = _from_json(path)
            self._next = version.number + 1
            if version.file is None or (version.file.is_file() and not version.file.is_symlink()):
                self._versions.setdefault(version.key, []).insert(0, version)
        for key, versions in list(self._versions.items()):
            limits = [limit for prefix, limit in days if key.startswith(prefix)]
            for newer, version in list(zip(versions, versions[1:], strict=False)):
                if limits and now - newer.modified_at > timedelta(days=min(limits)):
                    self._drop(version)

    def versions(self, key: str) -> list[ObjectVersion]:
        """Return the versions of an object, the newest first."""
        with self._lock:
            return [*self._versions.get(key, ())]

    def delete_object(self, *, Key: str, VersionId: str = "", **_: Any) -> dict[str, Any]:
        """Delete one version, or put a marker before the newest one."""
        with self._lock:
            if self.versioned and not VersionId:
                marker = self._new_version(Key, str(uuid.uuid4()))
                self._keep(marker)
                return {"VersionId": marker.version_id, "DeleteMarker": True}
            for version in list(self._versions.get(Key, ())):
                if VersionId in ("", version.version_id):
                    self._drop(version)
            return {"VersionId": VersionId} if VersionId else {}

    def delete_objects(self, *, Delete: Mapping[str, Any], **_: Any) -> dict[str, Any]:
        """Delete several objects."""
        return {"Deleted": [{**one, **self.delete_object(**one)} for one in Delete["Objects"]]}

    def _add(
        self, key: str, new: Path, sha256: str, metadata: dict[str, str], checksummed: bool
    ) -> ObjectVersion:
        before = list(self._versions.get(key, ()))
        known = {"sha256": sha256, "metadata": metadata, "checksummed": checksummed}
        place = {"file": self._file(self._next), "size": new.stat().st_size}
        version_id = str(uuid.uuid4()) if self.versioned else UNVERSIONED
        version = self._new_version(key, version_id, **known, **place)
        self._keep(version, new)
        for old in before:
            if old.version_id == version.version_id:
                self._drop(old)
        return version

    def _new_version(self, key: str, version_id: str, **facts: Any) -> KeptVersion:
        now, number = utc_now(), self._next
        return KeptVersion(key=key, version_id=version_id, modified_at=now, number=number, **facts)

    def _keep(self, version: KeptVersion, new: Path | None = None) -> None:
        """Store a version as the newest of its key. Without room on the disk it has not happened."""
        file = self._file(version.number)
        self._next += 1
        try:
            if new is not None:
                new.replace(file)
            with whole_file(file.with_suffix(".json")) as facts:
                facts.write_text(_to_json(version), encoding="utf-8")
        except OSError:
            file.unlink(missing_ok=True)
            raise
        self._versions.setdefault(version.key, []).insert(0, version)

    def _drop(self, version: KeptVersion) -> None:
        file = self._file(version.number)
        file.with_suffix(".json").unlink(missing_ok=True)
        file.unlink(missing_ok=True)
        self._versions[version.key].remove(version)
        if not self._versions[version.key]:
            del self._versions[version.key]

    def _file(self, number: int) -> Path:
        return self.folder / f"{number:09d}"

    def _entries(self, prefix: str) -> Iterator[dict[str, Any]]:
        with self._lock:
            for key in self._keys(prefix):
                newest = self._versions[key][0]
                if newest.file:
                    yield newest.entry()

    def _keys(self, prefix: str) -> list[str]:
        with self._lock:
            return sorted(key for key in self._versions if key.startswith(prefix))

    def _new_file(self, key: str) -> Path:
        return self.folder / f".new-{secrets.token_hex(8)}"

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with self._lock:
            yield

    @contextmanager
    def _failing(self, operation: str) -> Iterator[None]:
        yield  # the front answers for a full disk


def _to_json(version: KeptVersion) -> str:
    facts = {name: getattr(version, name) for name in _FACTS}
    return json.dumps({**facts, "modified_at": iso(version.modified_at), "deleted": version.file is None})


def _from_json(path: Path) -> KeptVersion:
    saved = json.loads(path.read_text(encoding="utf-8"))
    facts = {name: saved[name] for name in _FACTS}
    file = None if saved["deleted"] else path.with_suffix("")
    at = from_iso(saved["modified_at"])
    return KeptVersion(**facts, modified_at=at, file=file, number=int(path.stem))
