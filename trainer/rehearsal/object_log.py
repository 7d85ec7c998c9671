"""Storage of S3: every object version is written to a folder, and restored with the same VersionId, ETag and
date.

A version is a payload file and a JSON, both put in place by rename; a bucket's settings are stored as
requests and replayed. No pickle. This module and `wire` use internals of moto, which is pinned exactly.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from moto.s3.models import FakeDeleteMarker, FakeKey, s3_backends

from trainer.base.files import whole_file
from trainer.rehearsal.home import reading

_PLAIN_FIELDS = (
    "name", "account_id", "region_name", "bucket_name", "encryption", "kms_key_id",
    "checksum_value", "checksum_type", "checksum_parts",
)  # fmt: skip
REGION = "us-east-1"


class _StoredKey(FakeKey):
    """An object whose payload is in the folder and read on demand."""

    _payload: Path | None = None

    @classmethod
    def adopt(cls, key: FakeKey, payload: Path) -> None:
        """Replace a payload that moto holds in memory by its file."""
        key.__class__ = cls
        key._payload = payload  # type: ignore[attr-defined]
        key.multipart = None  # its parts are the payload a second time
        key._value_buffer.close()

    @property
    def value(self) -> bytes:
        return self._payload.read_bytes() if self._payload else b""

    @value.setter
    def value(self, new_value: bytes) -> None:
        if new_value:  # moto never rewrites a payload in place
            raise NotImplementedError("a stored object version cannot be rewritten")
        self.contentsize = 0

    def __deepcopy__(self, memo: dict[int, Any]) -> _StoredKey:
        """Copy without the payload: moto copies every version to list them."""
        twin = object.__new__(_StoredKey)
        twin.__dict__.update(self.__dict__)
        return twin


@dataclass(frozen=True, kw_only=True)
class _File:
    """File of a version, and its tags, which alone may change."""

    name: str
    tags: dict[str, str]


class ObjectLog:
    """Folder of one account's buckets."""

    def __init__(self, folder: Path, account: str) -> None:
        self._versions, self._payloads, self._settings = (
            folder / "versions",
            folder / "payloads",
            folder / "settings",
        )
        for path in (self._versions, self._payloads, self._settings):
            path.mkdir(parents=True, exist_ok=True)
        self._account = account
        self._next = 1
        self._files: dict[
            tuple[str, str], dict[str, _File]
        ] = {}  # (bucket, key) -> identity of a version -> its file

    @property
    def _backend(self) -> Any:
        return s3_backends[self._account]["aws"]

    # settings
    # ------------------------------------------------------------------------------------------

    def save_setting(self, service: str, operation: str, about: str, params: dict[str, Any]) -> None:
        """Store a request that made a setting (a bucket's versioning, a parameter) in place of an earlier
        one.
        """
        saved = json.dumps({"service": service, "operation": operation, "about": about, "params": params})
        with whole_file(self._setting_file(operation, about)) as new:
            new.write_bytes(saved.encode())

    def drop_settings(self, about: str) -> None:
        """Delete the stored settings of one bucket or parameter."""
        for path in self._settings.glob("*.json"):
            if json.loads(path.read_text(encoding="utf-8"))["about"] == about:
                path.unlink()

    def settings(self) -> Iterable[tuple[Path, str, str, dict[str, Any]]]:
        """Yield the stored requests, those that create a bucket first: (file, service, operation,
        parameters).

        Raises ConfigError for a file that can't be read.
        """
        for path in sorted(self._settings.glob("*.json")):
            with reading(path):
                saved = json.loads(path.read_text(encoding="utf-8"))
                service, operation, params = saved["service"], saved["operation"], dict(saved["params"])
            yield path, service, operation, params

    def _setting_file(self, operation: str, about: str) -> Path:
        rank = 0 if operation == "CreateBucket" else 1
        return (
            self._settings / f"{rank}-{hashlib.sha256(f'{operation} {about}'.encode()).hexdigest()[:24]}.json"
        )

    # objects
    # ------------------------------------------------------------------------------------------

    def sync(self, bucket: str, key: str) -> None:
        """Make the folder hold exactly moto's versions of a key. The caller holds the lock of the writers.

        Raises OSError if a version can't be written, which moto then has no longer: the write has not
        happened.
        """
        before = self._files.get((bucket, key), {})
        after: dict[str, _File] = {}
        stored = self._backend.buckets.get(bucket)
        for version in stored.keys.getlist(key, []) if stored else []:
            file = before.get(_identity(version))
            tags = self._tags(version)
            if file is None:
                file = _File(name=self._new_name(), tags=tags)
                try:
                    self._save(bucket, version, file)
                except OSError:
                    self._drop_others(stored.keys, key, before)
                    (self._payloads / file.name).unlink(missing_ok=True)
                    raise
            elif file.tags != tags:  # under its old name: the names hold the order of the versions
                file = _File(name=file.name, tags=tags)
                self._save(bucket, version, file)
            after[_identity(version)] = file
        for identity in before.keys() - after.keys():
            (self._versions / f"{before[identity].name}.json").unlink(missing_ok=True)
            (self._payloads / before[identity].name).unlink(missing_ok=True)
        self._files[bucket, key] = after

    def _drop_others(self, keys: Any, key: str, stored: dict[str, _File]) -> None:
        """Leave moto only the stored versions of a key."""
        if left := [version for version in keys.getlist(key) if _identity(version) in stored]:
            keys.setlist(key, left)
        else:
            keys.pop(key)

    def restore(self, now: datetime) -> int:
        """Restore the stored versions in moto, whose buckets must exist again; return their number.

        Versions that the bucket's lifecycle would have expired are deleted first: moto expires none.
        """
        count = 0
        for path, saved in self._unexpired(now):
            with reading(path):
                count += self._restore(path, saved)
        return count

    def _restore(self, path: Path, saved: dict[str, Any]) -> int:
        bucket = self._backend.buckets.get(saved["bucket_name"])
        payload = self._payloads / path.stem
        self._next = max(self._next, int(path.stem) + 1)
        if bucket is None or (saved["kind"] == "object" and not payload.exists()):
            # an incomplete version: the server died between payload and JSON, and the writer got no answer
            return 0
        version: Any = _object(saved, payload, bucket) if saved["kind"] == "object" else _marker(saved)
        version.last_modified = datetime.fromisoformat(saved["last_modified"])
        bucket.keys.setlist(saved["name"], [*bucket.keys.getlist(saved["name"], []), version])
        if saved.get("tags"):
            tags = [{"Key": name, "Value": value} for name, value in saved["tags"].items()]
            self._backend.tagger.tag_resource(version.arn, tags)
        files = self._files.setdefault((saved["bucket_name"], saved["name"]), {})
        files[_identity(version)] = _File(name=path.stem, tags=self._tags(version))
        return 1

    def _unexpired(self, now: datetime) -> Iterable[tuple[Path, dict[str, Any]]]:
        """Return the stored versions, oldest first; delete those that their bucket's lifecycle would have
        expired.
        """
        limits = [
            (
                params["Bucket"],
                rule.get("Filter", {}).get("Prefix", ""),
                rule["NoncurrentVersionExpiration"]["NoncurrentDays"],
            )
            for _, _, operation, params in self.settings()
            if operation == "PutBucketLifecycleConfiguration"
            for rule in params["LifecycleConfiguration"]["Rules"]
            if rule["Status"] == "Enabled" and "NoncurrentVersionExpiration" in rule
        ]
        newer: dict[tuple[str, str], datetime] = {}  # creation time of the next version
        kept = []
        for path in sorted(self._versions.glob("*.json"), reverse=True):
            with reading(path):
                saved = json.loads(path.read_text(encoding="utf-8"))
                bucket, name = str(saved["bucket_name"]), str(saved["name"])
                replaced_at = newer.get((bucket, name), now)
                newer[bucket, name] = datetime.fromisoformat(saved["last_modified"]).replace(
                    tzinfo=timezone.utc
                )
            days = [days for owner, prefix, days in limits if owner == bucket and name.startswith(prefix)]
            if days and now - replaced_at > timedelta(days=min(days)):
                path.unlink()
                (self._payloads / path.stem).unlink(missing_ok=True)
            else:
                kept.append((path, saved))
        return reversed(kept)

    def _tags(self, version: Any) -> dict[str, str]:
        tags: dict[str, str] = (
            self._backend.tagger.get_tag_dict_for_resource(version.arn) if _is_object(version) else {}
        )
        return tags

    def _new_name(self) -> str:
        name = f"{self._next:09d}"
        self._next += 1
        return name

    def _save(self, bucket: str, version: Any, file: _File) -> None:
        saved: dict[str, Any] = {
            "kind": "marker",
            "bucket_name": bucket,
            "name": version.name,
            "version_id": version.version_id,
            "last_modified": version.last_modified.isoformat(),
        }
        if _is_object(version):
            saved |= {field: getattr(version, field) for field in _PLAIN_FIELDS}
            saved |= {
                "kind": "object",
                "etag": version.etag.strip('"'),
                "metadata": dict(version.metadata),
                "checksum_algorithm": version.checksum_algorithm,
                "storage": version.storage_class,
                "tags": file.tags,
            }
            if not isinstance(version, _StoredKey):
                with whole_file(self._payloads / file.name) as new:
                    new.write_bytes(version.value)
                _StoredKey.adopt(version, self._payloads / file.name)
        with whole_file(self._versions / f"{file.name}.json") as new:
            new.write_bytes(json.dumps(saved).encode())


def _is_object(version: Any) -> bool:
    return isinstance(version, FakeKey)


def _identity(version: Any) -> str:
    """Return a text that identifies a version even in an unversioned bucket, where a new one has the
    same id.
    """
    etag = version.etag if _is_object(version) else "marker"
    return f"{version.version_id} {etag} {version.last_modified.isoformat()}"


def _object(saved: dict[str, Any], payload: Path, bucket: Any) -> FakeKey:
    version = _StoredKey(
        value=b"",
        **{field: saved[field] for field in _PLAIN_FIELDS},
        storage=saved["storage"],
        etag=saved["etag"],
        is_versioned=bucket.is_versioned,
        version_id=None if saved["version_id"] == "null" else saved["version_id"],
    )
    version._payload = payload
    version.contentsize = payload.stat().st_size
    version.metadata.update(saved["metadata"])
    version.checksum_algorithm = saved["checksum_algorithm"]
    return version


def _marker(saved: dict[str, Any]) -> FakeDeleteMarker:
    key = FakeKey(
        name=saved["name"], value=b"", account_id="", region_name=REGION, bucket_name=saved["bucket_name"]
    )
    marker = FakeDeleteMarker(key)
    marker._version_id = saved["version_id"]
    return marker
