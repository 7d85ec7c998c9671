"""Memory of S3: every object version written through to a folder, and restored with the same VersionIds, ETags and dates.

A version is a payload file and a JSON, both put in place by rename; a bucket's settings are the requests that made them,
replayed. No pickle. With `wire`, the one module that knows moto's inside (pinned exactly).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

from moto.s3.models import FakeDeleteMarker, FakeKey, s3_backends

_PLAIN_FIELDS = (
    "name", "account_id", "region_name", "bucket_name", "encryption", "kms_key_id",
    "checksum_value", "checksum_type", "checksum_parts",
)  # fmt: skip
REGION = "us-east-1"


class _StoredKey(FakeKey):
    """An object whose payload lies in the folder, and is read when somebody asks for it."""

    _payload: Path | None = None

    @classmethod
    def adopt(cls, key: FakeKey, payload: Path) -> None:
        """Let go of a payload that moto holds in memory, in favour of the file."""
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


class ObjectLog:
    """The folder that remembers one account's buckets."""

    def __init__(self, folder: Path, account: str) -> None:
        self._versions, self._payloads, self._settings = folder / "versions", folder / "payloads", folder / "settings"
        for path in (self._versions, self._payloads, self._settings):
            path.mkdir(parents=True, exist_ok=True)
        self._account = account
        self._next = 1
        self._names: dict[tuple[str, str], dict[tuple[str, str], str]] = {}  # (bucket, key) -> (version, mark) -> file name

    @property
    def _backend(self) -> Any:
        return s3_backends[self._account]["aws"]

    # settings ---------------------------------------------------------------------------------------------------------

    def save_setting(self, service: str, operation: str, about: str, params: dict[str, Any]) -> None:
        """Remember a request that set something up (a bucket's versioning, a parameter), in place of an earlier one like it."""
        saved = json.dumps({"service": service, "operation": operation, "about": about, "params": params})
        _replace(self._setting_file(operation, about), saved.encode())

    def drop_settings(self, about: str) -> None:
        """Forget everything that was set up for one thing."""
        for path in self._settings.glob("*.json"):
            if json.loads(path.read_text(encoding="utf-8"))["about"] == about:
                path.unlink()

    def settings(self) -> Iterable[tuple[str, str, dict[str, Any]]]:
        """Return the remembered requests, those that create a bucket first: (service, operation, parameters)."""
        for path in sorted(self._settings.glob("*.json")):
            saved = json.loads(path.read_text(encoding="utf-8"))
            yield saved["service"], saved["operation"], saved["params"]

    def _setting_file(self, operation: str, about: str) -> Path:
        rank = 0 if operation == "CreateBucket" else 1
        return self._settings / f"{rank}-{hashlib.sha256(f'{operation} {about}'.encode()).hexdigest()[:24]}.json"

    # objects ----------------------------------------------------------------------------------------------------------

    def sync(self, bucket: str, key: str) -> None:
        """Make the folder hold exactly moto's versions of a key. The caller holds the lock of the writers."""
        before = self._names.get((bucket, key), {})
        after: dict[tuple[str, str], str] = {}
        stored = self._backend.buckets.get(bucket)
        for version in stored.keys.getlist(key, []) if stored else []:
            mark = (version.version_id, self._mark(version))
            after[mark] = before.get(mark) or self._save(bucket, version)
        for mark in before.keys() - after.keys():
            (self._versions / f"{before[mark]}.json").unlink(missing_ok=True)
            (self._payloads / before[mark]).unlink(missing_ok=True)
        self._names[bucket, key] = after

    def restore(self) -> int:
        """Put every remembered version back into moto, whose buckets exist again, and return how many there were."""
        count = 0
        for path in sorted(self._versions.glob("*.json")):
            saved = json.loads(path.read_text(encoding="utf-8"))
            bucket = self._backend.buckets.get(saved["bucket_name"])
            payload = self._payloads / path.stem
            if bucket is None or (saved["kind"] == "object" and not payload.exists()):
                continue  # half a version: the server died between payload and JSON, and its writer got no answer
            version: Any = _object(saved, payload, bucket) if saved["kind"] == "object" else _marker(saved)
            version.last_modified = datetime.fromisoformat(saved["last_modified"])
            bucket.keys.setlist(saved["name"], [*bucket.keys.getlist(saved["name"], []), version])
            if saved.get("tags"):
                tags = [{"Key": name, "Value": value} for name, value in saved["tags"].items()]
                self._backend.tagger.tag_resource(version.arn, tags)
            names = self._names.setdefault((saved["bucket_name"], saved["name"]), {})
            names[version.version_id, self._mark(version)] = path.stem
            self._next = max(self._next, int(path.stem) + 1)
            count += 1
        return count

    def _mark(self, version: Any) -> str:
        """Tell apart what may change under one version id: its payload (unversioned buckets) and its tags."""
        if not isinstance(version, FakeKey):
            return "marker"
        tags = self._backend.tagger.get_tag_dict_for_resource(version.arn)
        return f"{version.etag} {version.last_modified.isoformat()} {json.dumps(tags, sort_keys=True)}"

    def _save(self, bucket: str, version: Any) -> str:
        name = f"{self._next:09d}"
        self._next += 1
        saved: dict[str, Any] = {
            "kind": "marker",
            "bucket_name": bucket,
            "name": version.name,
            "version_id": version.version_id,
            "last_modified": version.last_modified.isoformat(),
        }
        if isinstance(version, FakeKey):
            saved |= {field: getattr(version, field) for field in _PLAIN_FIELDS}
            saved |= {
                "kind": "object",
                "etag": version.etag.strip('"'),
                "metadata": dict(version.metadata),
                "checksum_algorithm": version.checksum_algorithm,
                "storage": version.storage_class,
                "tags": self._backend.tagger.get_tag_dict_for_resource(version.arn),
            }
            _replace(self._payloads / name, version.value)
            _StoredKey.adopt(version, self._payloads / name)
        _replace(self._versions / f"{name}.json", json.dumps(saved).encode())
        return name


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
    key = FakeKey(name=saved["name"], value=b"", account_id="", region_name=REGION, bucket_name=saved["bucket_name"])
    marker = FakeDeleteMarker(key)
    marker._version_id = saved["version_id"]
    return marker


def _replace(path: Path, data: bytes) -> None:
    """Write a file so that it is there whole or not at all."""
    temporary = path.with_suffix(".tmp")
    temporary.write_bytes(data)
    temporary.replace(path)
