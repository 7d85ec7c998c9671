"""Uploads in parts of a bucket in a folder, as S3 has them: parts by number, each with its checksum, until
they are completed to one object or forgotten.

    .uploads/<id>/upload.json           what the object will be
    .uploads/<id>/<number>-<sha256>     a part
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

from trainer.aws.checksums import crc64nvme, sha256_sum
from trainer.base.files import whole_file

UPLOADS = ".uploads"  # no key begins with a dot
LEAST_PART_BYTES = 5 << 20  # but for the last (S3 user guide, "Multipart upload limits", 2026-11-27)
_SUMS: dict[str, Callable[[bytes], str]] = {
    "ChecksumCRC32": lambda body: base64.b64encode(zlib.crc32(body).to_bytes(4)).decode(),
    "ChecksumCRC64NVME": crc64nvme,
    "ChecksumSHA256": lambda body: sha256_sum(hashlib.sha256(body).hexdigest()),
}


class FolderUploads:
    """The uploads under way below a folder. Raises what `refused(code, status, operation, message)`
    returns.
    """

    def __init__(self, folder: Path, refused: Callable[[str, int, str, str], Exception]) -> None:
        self._root, self._refused = folder / UPLOADS, refused

    def create(self, facts: Mapping[str, Any]) -> str:
        """Begin an upload and return its id."""
        name = secrets.token_hex(16)
        with whole_file(self._root / name / "upload.json") as new:
            new.write_text(json.dumps(dict(facts)), encoding="utf-8")
        return name

    def add(self, name: str, number: int, body: bytes, sums: Mapping[str, str]) -> str:
        """Take a part, in place of an earlier one of its number; return its ETag."""
        facts, folder = self.facts(name, "UploadPart"), self._root / name
        if not 1 <= number <= 10_000:
            what = "Part number must be an integer between 1 and 10000, inclusive"
            raise self._refused("InvalidArgument", 400, "UploadPart", what)
        for field, value in sums.items():
            if field != f"Checksum{facts['algorithm']}" and facts["algorithm"]:
                what = f"Checksum Type mismatch occurred, expected checksum Type: {facts['algorithm']}"
                raise self._refused("InvalidRequest", 400, "UploadPart", what)
            if field in _SUMS and _SUMS[field](body) != value:
                what = f"The {field.removeprefix('Checksum')} you specified did not match what we received."
                raise self._refused("BadDigest", 400, "UploadPart", what)
        etag = hashlib.sha256(body).hexdigest()
        try:
            with whole_file(folder / f"{number:05d}-{etag}") as new:
                new.write_bytes(body)
        except FileNotFoundError:  # it was completed between the folder's making and the file's
            self.facts(name, "UploadPart")
            raise
        if not (folder / "upload.json").exists():  # it was completed meanwhile
            shutil.rmtree(folder, ignore_errors=True)
            self.facts(name, "UploadPart")
        for old in folder.glob(f"{number:05d}-*"):
            if old.name != f"{number:05d}-{etag}":
                old.unlink(missing_ok=True)
        return f'"{etag}"'

    @contextmanager
    def joined(self, name: str, parts: list[Mapping[str, Any]]) -> Iterator[JoinedParts]:
        """Yield the bytes of the named parts, in their order, and forget the upload then. Nobody else can
        complete it meanwhile, nor add to it; after an error it is there again.
        """
        operation = "CompleteMultipartUpload"
        self.facts(name, operation)
        claimed = self._root / secrets.token_hex(16)
        try:
            (self._root / name).rename(claimed)
        except FileNotFoundError:
            self.facts(name, operation)
            raise
        try:
            body = JoinedParts(self._places(claimed, parts, operation))
            try:
                yield body
            finally:
                body.close()
        except BaseException:  # Ctrl-C too: the upload can still be completed
            claimed.rename(self._root / name)
            raise
        shutil.rmtree(claimed, ignore_errors=True)

    def _places(self, folder: Path, parts: list[Mapping[str, Any]], operation: str) -> list[Path]:
        """Return the files of the named parts. Raises what S3 answers for parts that can't be joined."""
        places = list[Path]()
        numbers = [int(part["PartNumber"]) for part in parts]
        if numbers != sorted(set(numbers)):
            what = "The list of parts was not in ascending order."
            raise self._refused("InvalidPartOrder", 400, operation, what)
        for part in parts:
            etag = str(part.get("ETag", "")).strip('"')
            place = folder / f"{int(part['PartNumber']):05d}-{etag}"
            if not etag.isalnum() or not place.is_file():
                what = "One or more of the specified parts could not be found."
                raise self._refused("InvalidPart", 400, operation, what)
            places.append(place)
        if any(place.stat().st_size < LEAST_PART_BYTES for place in places[:-1]):
            what = "Your proposed upload is smaller than the minimum allowed size"
            raise self._refused("EntityTooSmall", 400, operation, what)
        return places

    def forget(self, name: str, operation: str) -> None:
        """Forget an upload and its parts."""
        self.facts(name, operation)
        shutil.rmtree(self._root / name, ignore_errors=True)

    def forget_old(self, before: datetime) -> None:
        """Forget the uploads that began before an instant."""
        for begun in self._root.glob("*/upload.json"):
            if begun.stat().st_mtime < before.timestamp():
                shutil.rmtree(begun.parent, ignore_errors=True)

    def facts(self, name: str, operation: str) -> dict[str, Any]:
        """Return what an upload began with."""
        try:
            if not name.isalnum():
                raise FileNotFoundError(name)
            facts: dict[str, Any] = json.loads((self._root / name / "upload.json").read_text("utf-8"))
            return facts
        except (OSError, ValueError):
            what = "The specified upload does not exist."
            raise self._refused("NoSuchUpload", 404, operation, what) from None


class JoinedParts:
    """The bytes of several files, one after another, as a file that can be read once."""

    def __init__(self, places: list[Path]) -> None:
        self._left = list(places)
        self._file: BinaryIO | None = None

    def read(self, most: int = -1) -> bytes:
        """Return the next bytes, none at the end."""
        while self._file is not None or self._left:
            if self._file is None:
                self._file = self._left.pop(0).open("rb")
            if block := self._file.read(most):
                return block
            self._file.close()
            self._file = None
        return b""

    def close(self) -> None:
        """Close what is open."""
        if self._file is not None:
            self._file.close()


def sums_of(arguments: Mapping[str, Any]) -> dict[str, str]:
    """Return the checksums that a request names."""
    names = ("ChecksumCRC32", "ChecksumCRC32C", "ChecksumCRC64NVME", "ChecksumSHA1", "ChecksumSHA256")
    return {name: str(arguments[name]) for name in names if arguments.get(name)}
