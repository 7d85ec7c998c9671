from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from trainer.access import Access
from trainer.data import sync
from trainer.data.sync import LocalFile, upload
from trainer.errors import DataError, NotVersioned
from trainer.launch.inputs import list_inputs
from trainer.runs.store import open_objects


@pytest.fixture
def bucket(access: Access) -> str:
    s3, name = access.client("s3"), f"candles-{(access.access_key or '')[4:16]}"
    s3.create_bucket(Bucket=name)
    s3.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
    return name


def local(path: Path, content: bytes) -> LocalFile:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    summary = {"file": path.name, "timeframe": "1m", "synthetic": False, "holds": []}
    return LocalFile(path=path, sha256=hashlib.sha256(content).hexdigest(), bytes=len(content), summary=summary)


def test_an_upload_is_pinned_by_version_and_hash_and_indexed(access, bucket, tmp_path):
    file = local(tmp_path / "a.parquet", b"one")
    (entry,) = upload([file], access, bucket=bucket)
    (found,) = list_inputs(open_objects(access, bucket))
    assert found.pinned() == entry == {**entry, "key": "raw/a.parquet", "sha256": file.sha256, "bytes": 3}
    assert found.summary == file.summary


def test_the_same_bytes_are_not_uploaded_again_and_others_are_a_new_version(access, bucket, tmp_path):
    (first,) = upload([local(tmp_path / "a.parquet", b"one")], access, bucket=bucket)
    (again,) = upload([local(tmp_path / "b" / "a.parquet", b"one")], access, bucket=bucket)
    (other,) = upload([local(tmp_path / "a.parquet", b"two")], access, bucket=bucket)
    assert again == first
    assert other["key"] == first["key"]
    assert other["version_id"] != first["version_id"]


def test_a_file_that_s3_keeps_without_a_version_is_no_input(access, bucket, tmp_path):
    access.client("s3").create_bucket(Bucket=f"un{bucket}")
    for _ in range(2):  # the second time it is there already
        with pytest.raises(NotVersioned, match=r"raw/a.parquet without a version"):
            upload([local(tmp_path / "a.parquet", b"one")], access, bucket=f"un{bucket}")


def test_two_files_of_one_name_are_refused_before_anything_is_uploaded(access, bucket, tmp_path):
    files = [local(tmp_path / folder / "a.parquet", folder.encode()) for folder in ("x", "y")]
    with pytest.raises(DataError, match=r"2 files are called a.parquet"):
        upload(files, access, bucket=bucket)
    assert list_inputs(open_objects(access, bucket)) == ()


def test_a_file_too_large_for_one_upload_is_named(access, bucket, tmp_path, monkeypatch):
    monkeypatch.setattr(sync, "LARGEST_PUT_BYTES", 2)
    with pytest.raises(DataError, match="Split it"):
        upload([local(tmp_path / "a.parquet", b"one")], access, bucket=bucket)


def test_a_file_that_somebody_else_put_there_is_listed_without_a_hash(access, bucket):
    access.client("s3").put_object(Bucket=bucket, Key="raw/x.parquet", Body=b"x")
    (found,) = list_inputs(open_objects(access, bucket))
    assert (found.sha256, found.summary) == ("", {})
