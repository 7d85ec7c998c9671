"""Transfers that are broken off, raced or lied to: no torn file is ever taken for whole, and the next try goes on."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError, ResponseStreamingError

from trainer.aws import folder_uploads, parts, transfer
from trainer.aws.access import error_code
from trainer.aws.parts import MOST_PARTS, PART_BYTES, part_bytes_of
from trainer.aws.transfer import fetch_file, put_file
from trainer.rehearsal.kept_bucket import KeptBucket

KEY, PART = "raw/main/a.parquet", 1000


class Interrupted(Exception):
    """The command ends here."""


class Weather:
    """A bucket whose calls may fail; it counts those that it carried out."""

    def __init__(self, bucket: KeptBucket) -> None:
        self.bucket, self.calls = bucket, Counter[str]()
        self.before: Callable[[str, dict[str, Any]], None] = lambda name, asked: None
        self.body: Callable[[Any], Any] = lambda body: body

    def __getattr__(self, name: str) -> Any:
        def call(**asked: Any) -> Any:
            self.before(name, asked)
            answer = getattr(self.bucket, name)(**asked)
            self.calls[name] += 1
            return {**answer, "Body": self.body(answer["Body"])} if "Body" in answer else answer

        return call


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Weather:
    """A bucket with versions, parts of 1,000 bytes, and journals of the test's own."""
    for module, name, value in (
        (parts, "PART_BYTES", PART),
        (parts, "_BLOCK_BYTES", 100),
        (transfer, "WHOLE_BYTES", 2 * PART),
        (folder_uploads, "LEAST_PART_BYTES", 1),
    ):
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(parts.fetch_parts, "__kwdefaults__", {"pause": lambda seconds: None})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    bucket = KeptBucket(tmp_path / "bucket")
    bucket.versioned = True
    return Weather(bucket)


def made(path: Path, size: int = 20 * PART - 7, seed: int = 0) -> tuple[Path, str]:
    content = random.Random(seed).randbytes(size)
    path.write_bytes(content)
    return path, hashlib.sha256(content).hexdigest()


def stored(s3: Weather) -> list[bytes]:
    """Return the bytes of each version of the object, the newest first."""
    return [version.file.read_bytes() for version in s3.bucket.versions(KEY) if version.file]


def journals(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "caches" / "mayfly" / "uploads").glob("*"))


def test_an_upload_goes_on_within_its_file(s3: Weather, tmp_path: Path) -> None:
    path, sha256 = made(tmp_path / "a")
    moved: list[int] = []

    def end_at_19(name: str, asked: dict[str, Any]) -> None:
        if name == "upload_part" and asked["PartNumber"] == 19:
            raise Interrupted

    s3.before = end_at_19
    with pytest.raises(Interrupted):
        put_file(path, KEY, sha256, s3, bucket="b")
    sent = s3.calls["upload_part"]
    assert sent >= 10 and not stored(s3)
    s3.before = lambda name, asked: None
    version = put_file(path, KEY, sha256, s3, bucket="b", moved=moved.append)
    assert s3.calls["upload_part"] == 20, "no part was sent twice"
    assert s3.calls["create_multipart_upload"] == 1
    assert (version, stored(s3)) == (s3.bucket.versions(KEY)[0].version_id, [path.read_bytes()])
    assert s3.bucket.head_object(Key=KEY)["Metadata"] == {"sha256": sha256}
    assert sum(moved) == path.stat().st_size and not journals(tmp_path)
    assert put_file(path, KEY, sha256, s3, bucket="b") == version, "and it is not sent again"


def test_an_upload_survives_interruptions_at_random(s3: Weather, tmp_path: Path) -> None:
    drawn, path, sha256 = random.Random(5), *made(tmp_path / "a")
    left = [0]

    def end(name: str, asked: dict[str, Any]) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Interrupted if drawn.random() < 0.5 else ResponseStreamingError(error="it broke")

    s3.before, tries = end, 0
    while not stored(s3):
        left[0], tries = drawn.randrange(8), tries + 1
        try:
            put_file(path, KEY, sha256, s3, bucket="b")
        except (Interrupted, ResponseStreamingError):
            assert not stored(s3)
    assert tries > 3 and stored(s3) == [path.read_bytes()]
    assert s3.calls["create_multipart_upload"] == 1 and s3.calls["upload_part"] == 20


def test_small_files_are_one_request_with_s3s_own_hash(s3: Weather, tmp_path: Path) -> None:
    path, sha256 = made(tmp_path / "a", 2 * PART)
    put_file(path, KEY, sha256, s3, bucket="b")
    assert s3.calls == {"put_object": 1}
    assert s3.bucket.head_object(Key=KEY)["ChecksumSHA256"]


@pytest.mark.parametrize("spoiled", ["torn", "other", "checksum", "expired"])
def test_a_journal_is_only_a_hint(s3: Weather, tmp_path: Path, spoiled: str) -> None:
    path, sha256 = made(tmp_path / "a")

    def end_at_15(name: str, asked: dict[str, Any]) -> None:
        if name == "upload_part" and asked["PartNumber"] == 15:
            raise Interrupted

    s3.before = end_at_15
    with pytest.raises(Interrupted):
        put_file(path, KEY, sha256, s3, bucket="b")
    (journal,) = journals(tmp_path)
    lines = journal.read_text().splitlines(keepends=True)
    if spoiled == "torn":
        journal.write_text("".join(lines)[:-9])
    elif spoiled == "other":
        journal.write_text("".join([json.dumps({**json.loads(lines[0]), "size": 5}) + "\n", *lines[1:]]))
    elif spoiled == "checksum":
        wrong = {**json.loads(lines[1]), "checksum": "AAAA"}
        journal.write_text("".join([lines[0], json.dumps(wrong) + "\n", *lines[2:]]))
    else:
        s3.bucket.abort_multipart_upload(UploadId=json.loads(lines[0])["upload_id"])
    s3.before = lambda name, asked: None
    moved: list[int] = []
    put_file(path, KEY, sha256, s3, bucket="b", moved=moved.append)
    assert stored(s3) == [path.read_bytes()] and not journals(tmp_path)
    assert sum(moved) == path.stat().st_size


def test_a_file_that_changes_while_it_is_sent_becomes_no_object(s3: Weather, tmp_path: Path) -> None:
    path, sha256 = made(tmp_path / "a")

    def change(name: str, asked: dict[str, Any]) -> None:
        if name == "create_multipart_upload":
            made(path, seed=1)

    s3.before = change
    with pytest.raises(ClientError) as failed:
        put_file(path, KEY, sha256, s3, bucket="b")
    assert error_code(failed.value) in transfer.CHANGED and not stored(s3) and not journals(tmp_path)
    s3.before = lambda name, asked: None
    shorter, sha256 = made(tmp_path / "b")
    os.truncate(shorter, 5 * PART)
    with pytest.raises(ClientError):
        put_file(shorter, KEY, sha256, s3, bucket="b")
    assert not stored(s3)


@pytest.mark.parametrize("same", [True, False])
def test_two_that_push_at_once_leave_whole_objects(s3: Weather, tmp_path: Path, same: bool) -> None:
    one, other = made(tmp_path / "a"), made(tmp_path / "b", seed=0 if same else 1)
    with ThreadPoolExecutor(2) as both:
        done = both.map(lambda file: put_file(file[0], KEY, file[1], s3, bucket="b"), (one, other))
        versions = set(done)
    known = {version.version_id: version for version in s3.bucket.versions(KEY)}
    assert versions <= known.keys()
    for version in known.values():
        assert version.file is not None
        content = version.file.read_bytes()
        assert hashlib.sha256(content).hexdigest() == version.metadata["sha256"] in (one[1], other[1])


def test_the_other_completes_the_upload_first(s3: Weather, tmp_path: Path) -> None:
    path, sha256 = made(tmp_path / "a")
    first: list[str] = []

    def other(name: str, asked: dict[str, Any]) -> None:
        if name == "complete_multipart_upload" and not first:
            first.append("begun")
            first.append(put_file(path, KEY, sha256, s3, bucket="b"))

    s3.before = other
    assert put_file(path, KEY, sha256, s3, bucket="b") == first[1]
    assert stored(s3) == [path.read_bytes()]


def test_a_part_that_comes_as_its_upload_is_completed_is_refused(
    s3: Weather, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = s3.bucket.create_multipart_upload(Bucket="b", Key=KEY)["UploadId"]

    @contextmanager
    def completed(path: Path) -> Iterator[Path]:
        shutil.rmtree(path.parent)
        yield path

    monkeypatch.setattr(folder_uploads, "whole_file", completed)
    with pytest.raises(ClientError, match="NoSuchUpload"):
        s3.bucket.upload_part(Bucket="b", Key=KEY, UploadId=upload, PartNumber=1, Body=b"late")


def test_parts_grow_with_the_file() -> None:
    assert part_bytes_of(100 << 20) == PART_BYTES
    assert -(-(5 << 40) // part_bytes_of(5 << 40)) <= MOST_PARTS


# --- down


class CutBody:
    """A body whose connection breaks after a number of bytes."""

    def __init__(self, body: Any, after: int) -> None:
        self.body, self.after = body, after

    def iter_chunks(self, size: int) -> Any:
        for block in self.body.iter_chunks(size):
            yield block[: self.after]
            self.after -= len(block)
            if self.after <= 0:
                raise ResponseStreamingError(error="the connection broke")


def fetch(s3: Weather, path: Path, sha256: str, *, version: str | None = None, size: int = 0) -> str:
    there = s3.bucket.versions(KEY)[0]
    known = {"bucket": "b", "size": size or there.size}
    return fetch_file(path, KEY, there.version_id if version is None else version, sha256, s3, **known)


@pytest.fixture
def there(s3: Weather, tmp_path: Path) -> tuple[Path, str]:
    """A file that is in the bucket."""
    path, sha256 = made(tmp_path / "a")
    put_file(path, KEY, sha256, s3, bucket="b")
    s3.calls.clear()
    return path, sha256


def test_a_download_survives_connections_cut_at_random(
    s3: Weather, there: tuple[Path, str], tmp_path: Path
) -> None:
    drawn = random.Random(3)
    s3.body = lambda body: CutBody(body, drawn.randrange(1, PART)) if drawn.random() < 0.4 else body
    for number in range(20):
        try:
            found = fetch(s3, tmp_path / f"to-{number}", there[1])
        except ResponseStreamingError:  # four times in a row: the caller tries again, and it goes on
            s3.body, cut = lambda body: body, s3.body
            found = fetch(s3, tmp_path / f"to-{number}", there[1])
            s3.body = cut
        assert found == there[1] and (tmp_path / f"to-{number}").read_bytes() == there[0].read_bytes()
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("spoiled", [False, True])
def test_a_download_goes_on_within_its_file(
    s3: Weather, there: tuple[Path, str], tmp_path: Path, spoiled: bool
) -> None:
    to, ended = tmp_path / "new" / "a", [12]

    def end(name: str, asked: dict[str, Any]) -> None:
        ended[0] -= 1
        if ended[0] < 0:
            raise Interrupted

    s3.before = end
    with pytest.raises(Interrupted):
        fetch(s3, to, there[1])
    assert not to.exists() and s3.calls["get_object"] == 12
    (partial,) = to.parent.glob(".*.partial")
    if spoiled:
        with partial.open("r+b") as file:
            file.write(b"spoilt")
    s3.before = lambda name, asked: None
    assert fetch(s3, to, there[1]) == there[1]
    assert s3.calls["get_object"] == (40 if spoiled else 20)
    assert to.read_bytes() == there[0].read_bytes() and [*to.parent.iterdir()] == [to]


def test_a_download_whose_partial_file_is_cut_begins_anew(
    s3: Weather, there: tuple[Path, str], tmp_path: Path
) -> None:
    """As after a crash of the machine; without a known hash nothing else would tell."""

    def end(name: str, asked: dict[str, Any]) -> None:
        if name == "get_object" and asked["Range"].startswith(f"bytes={15 * PART}-"):
            raise Interrupted

    s3.before = end
    to, version = tmp_path / "new" / "a", s3.bucket.versions(KEY)[0].version_id
    with pytest.raises(Interrupted):
        fetch(s3, to, "", version=version)
    s3.before = lambda name, asked: None
    (partial,) = to.parent.glob("*.partial")
    os.truncate(partial, 5 * PART)
    assert fetch(s3, to, "", version=version) == there[1]
    assert to.read_bytes() == there[0].read_bytes()


def test_a_download_is_of_one_version(s3: Weather, there: tuple[Path, str], tmp_path: Path) -> None:
    version, old = s3.bucket.versions(KEY)[0].version_id, there[0].read_bytes()
    asked_for: list[str] = []

    def replace(name: str, asked: dict[str, Any]) -> None:
        asked_for.append(name)
        if name == "get_object" and asked_for.count(name) == 5:
            s3.bucket.put_object(Key=KEY, Body=b"new" * 9000)

    s3.before = replace
    assert fetch(s3, tmp_path / "one", there[1], version=version, size=len(old)) == there[1]
    assert (tmp_path / "one").read_bytes() == old
    s3.bucket.put_object(Key=KEY, Body=old)
    asked_for.clear()
    with pytest.raises(ClientError) as failed:  # without a version, one that is replaced is no file
        fetch(s3, tmp_path / "two", "", version="", size=len(old))
    assert error_code(failed.value) == "PreconditionFailed" and not (tmp_path / "two").exists()


def test_two_that_pull_to_one_path_at_once_both_have_it(
    s3: Weather, there: tuple[Path, str], tmp_path: Path
) -> None:
    to, first = tmp_path / "new" / "a", list[str]()

    def other(name: str, asked: dict[str, Any]) -> None:
        if name == "get_object" and asked["Range"].startswith(f"bytes={15 * PART}-") and not first:
            first.append("begun")
            first.append(fetch(s3, to, there[1]))

    s3.before = other
    assert fetch(s3, to, there[1]) == first[1] == there[1]
    assert to.read_bytes() == there[0].read_bytes() and [*to.parent.iterdir()] == [to]


def test_other_bytes_or_another_size_get_no_name(
    s3: Weather, there: tuple[Path, str], tmp_path: Path
) -> None:
    to = tmp_path / "to"
    to.write_bytes(b"before")
    assert fetch(s3, to, "0" * 64) == there[1]
    for size in (len(there[0].read_bytes()) + 5000, 3 * PART):
        assert fetch(s3, to, "0" * 64, size=size) == there[1], "the hash of what is there"
    assert to.read_bytes() == b"before" and not list(tmp_path.glob(".*"))


def test_a_full_disk_ends_a_download_and_keeps_nothing(
    s3: Weather, there: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = os.pwrite

    def full(file: int, block: bytes, offset: int) -> int:
        if offset >= 12 * PART:
            raise OSError(errno.ENOSPC, "No space left on device")
        return written(file, block, offset)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space"):
        fetch(s3, tmp_path / "new" / "a", there[1])
    assert not [*(tmp_path / "new").iterdir()]
