"""A folder does for the control plane and for a node what a bucket does, conditions and hashes included."""

from __future__ import annotations

import base64
import contextlib
import errno
import fcntl
import hashlib
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from botocore.exceptions import ClientError

from trainer.aws.access import Access, error_code
from trainer.aws.folder_bucket import FolderBucket
from trainer.aws.objects import Conflict, open_objects
from trainer.aws.stack import read_stack
from trainer.aws.transfer import fetch_file, put_file
from trainer.base.errors import ConfigError


@pytest.fixture
def access(tmp_path: Path) -> Access:
    return Access(folder=tmp_path / "bucket")


def test_records_change_by_compare_and_swap(access):
    objects = open_objects(access, "")
    first = objects.put(key="runs/r/run.json", body=b"1", create=True)
    with pytest.raises(Conflict):
        objects.put(key="runs/r/run.json", body=b"2", create=True)
    second = objects.put(key="runs/r/run.json", body=b"22", if_match=first)
    with pytest.raises(Conflict):
        objects.put(key="runs/r/run.json", body=b"3", if_match=first)
    stored = objects.get(key="runs/r/run.json", first_bytes=1)
    assert stored and (stored.body, stored.etag) == (b"2", second)
    head = objects.head(key="runs/r/run.json", version_id=stored.version_id)
    assert head and (head.size, head.checksum) == (2, hashlib.sha256(b"22").hexdigest())
    assert objects.get(key="runs/r/run.json", version_id=first) is None  # what was replaced is gone
    assert objects.get(key="runs/none") is None


def test_no_update_is_lost_between_writers(access):
    objects = open_objects(access, "")
    objects.put(key="runs/count", body=b"0", create=True)

    def add_one(_: int) -> None:
        while True:
            stored = objects.get(key="runs/count")
            with contextlib.suppress(Conflict):
                objects.put(key="runs/count", body=str(int(stored.body) + 1).encode(), if_match=stored.etag)
                return

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(add_one, range(40)))
    assert objects.get(key="runs/count").body == b"40"


def test_a_writer_killed_in_the_middle_keeps_no_other_out(access):
    objects = open_objects(access, "")
    objects.put(key="runs/r", body=b"1")
    held = "import sys, time; from pathlib import Path; from trainer.aws.folder_bucket import FolderBucket\n"
    held += "with FolderBucket(Path(sys.argv[1]))._writing(): print('held', flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", held, str(access.folder)], stdout=subprocess.PIPE) as writer:
        assert writer.stdout.readline() == b"held\n"
        with (access.folder / ".lock").open() as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        writer.kill()
    objects.put(key="runs/r", body=b"2")
    assert objects.get(key="runs/r").body == b"2"


def test_listings_are_by_prefix_and_by_folder(access):
    objects = open_objects(access, "")
    for key in ("runs/b/run.json", "runs/a/run.json", "runs/index.json", "raw/.files/ab", "raw/main/x.csv"):
        objects.put(key=key, body=b"")
    assert [item.key for item in objects.list(prefix="runs/")] == [
        "runs/a/run.json",
        "runs/b/run.json",
        "runs/index.json",
    ]
    assert [item.key for item in objects.list(prefix="runs/a")] == ["runs/a/run.json"]
    assert [item.key for item in objects.list(prefix="runs/", after="runs/a/run.json")] == [
        "runs/b/run.json",
        "runs/index.json",
    ]
    assert objects.folders(prefix="runs/") == ("a", "b")
    assert objects.folders(prefix="raw/") == (
        ".files",
        "main",
    )
    assert (
        objects.list(prefix="nothing/") == () and objects.get(key="raw/main/x.csv", first_bytes=9) is not None
    )
    assert [item.size for item in objects.versions(key="raw/main/x.csv")] == [0]


def test_files_that_no_object_can_be_are_not_listed(access):
    """Whatever else somebody keeps in the folder: one odd name must not hide the others."""
    objects, folder = open_objects(access, ""), access.folder / "raw/main"
    objects.put(key="raw/main/a.csv", body=b"1")
    for name in ("b\\c.csv", "d\n.csv", "e" * 250):
        (folder / name).write_bytes(b"2")
    (folder / "f.csv").symlink_to(folder / "gone")
    assert [item.key for item in objects.list(prefix="raw/")] == ["raw/main/a.csv"]
    assert [item.key for item in objects.history(prefix="raw/")] == ["raw/main/a.csv"]
    assert objects.folders(prefix="raw/") == ("main",)


def test_bytes_are_those_of_the_version_that_they_are_said_to_be(access, monkeypatch):
    """An agent replaces an object while a command reads it: neither half of the bytes, nor another's version."""
    s3, find, late = access.client("s3"), FolderBucket.find, [b"longer", b"shrt", b"as long"]
    s3.put_object(Bucket="", Key="runs/r", Body=b"written")

    def find_and_replace(*asked):
        version = find(*asked)
        if late:
            s3.put_object(Bucket="", Key="runs/r", Body=late.pop(0))
        return version

    monkeypatch.setattr(FolderBucket, "find", find_and_replace)
    stored = open_objects(access, "").get(key="runs/r")
    assert stored and stored.version_id == hashlib.sha256(stored.body).hexdigest()
    assert stored.body == b"as long"


def test_files_go_up_and_down_with_their_hash(access, tmp_path):
    (tmp_path / "file").write_bytes(b"bytes")
    sha256, s3 = hashlib.sha256(b"bytes").hexdigest(), access.client("s3")
    version = put_file(tmp_path / "file", "raw/.files/x", sha256, s3, bucket="")
    assert put_file(tmp_path / "file", "raw/.files/x", sha256, s3, bucket="") == version
    assert fetch_file(tmp_path / "back", "raw/.files/x", version, sha256, s3, bucket="") == sha256
    assert (tmp_path / "back").read_bytes() == b"bytes"
    wrong = base64.b64encode(bytes(32)).decode()
    with pytest.raises(ClientError, match="BadDigest"):
        s3.put_object(Bucket="", Key="raw/y", Body=b"other", ChecksumSHA256=wrong)
    assert not (tmp_path / "bucket/raw/y").exists() and not list((tmp_path / "bucket/raw").glob(".new-*"))


def test_objects_are_copied_and_deleted(access):
    objects = open_objects(access, "")
    objects.put(key="models/experiments/a", body=b"model")
    version = objects.head(key="models/experiments/a").version_id
    made = {"source": "models/experiments/a", "version_id": version, "key": "models/production/main/a"}
    objects.copy(**made, create=True, sha256=version)
    there = objects.get(key="models/production/main/a")
    assert (there.body, there.checksum) == (b"model", version)
    with pytest.raises(Conflict):
        objects.copy(**made, create=True)
    objects.put(key="models/experiments/b", body=b"newer")
    newer = objects.head(key="models/experiments/b").version_id
    again = {**made, "source": "models/experiments/b", "version_id": newer}
    with pytest.raises(Conflict):
        objects.copy(**again, if_match=newer)
    objects.copy(**again, if_match=there.etag)
    assert objects.get(key=made["key"]).body == b"newer"
    with pytest.raises(ConfigError, match="cannot copy"):
        objects.copy(**{**again, "version_id": version}, if_match=newer)  # what was replaced is gone
    objects.delete(key=made["key"], version_id=version)
    assert objects.head(key=made["key"])
    for _ in range(2):
        objects.delete(key=made["key"], version_id=newer)
        assert objects.head(key=made["key"]) is None


@pytest.mark.parametrize("key", ["../out", "/etc/passwd", "runs/../../x", "runs/.hidden", "raw/.other/x"])
def test_a_key_leads_nowhere_else(access, key):
    with pytest.raises(ClientError) as error:
        access.client("s3").put_object(Bucket="", Key=key, Body=b"x")
    assert error_code(error.value) == "InvalidRequest"


def test_a_failing_disk_is_an_error_of_the_bucket(access, monkeypatch):
    s3 = access.client("s3")
    s3.put_object(Bucket="", Key="runs/r/run.json", Body=b"1")

    def fails(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full, pytest.raises(ClientError, match="No space left") as failed:
        full.setattr("os.fsync", fails)
        s3.put_object(Bucket="", Key="runs/r/run.json", Body=b"2")
    assert error_code(failed.value) == "FolderFailed" and len([*access.folder.glob("runs/r/*")]) == 1
    assert s3.get_object(Bucket="", Key="runs/r/run.json")["Body"].read() == b"1"
    for ask in (s3.get_object, s3.head_object):
        with monkeypatch.context() as broken, pytest.raises(ClientError, match="No space left"):
            broken.setattr("hashlib.file_digest", fails)
            ask(Bucket="", Key="runs/r/run.json")
    for ask in (s3.list_objects_v2, s3.list_object_versions):
        with monkeypatch.context() as broken, pytest.raises(ClientError, match="No space left"):
            broken.setattr("os.scandir", fails)
            ask(Bucket="", Prefix="runs/")


@pytest.mark.parametrize(
    ("range_", "found"),
    [
        ("", b"bytes"),
        ("bytes=1-2", b"yt"),
        ("bytes=1-", b"ytes"),
        ("bytes=-2", b"es"),
        ("bytes=0-99", b"bytes"),
    ],
)
def test_a_range_names_bytes(access, range_, found):
    s3 = access.client("s3")
    s3.put_object(Bucket="", Key="runs/r", Body=b"bytes")
    answer = s3.get_object(Bucket="", Key="runs/r", Range=range_)
    assert (answer["Body"].read(), answer["ContentLength"]) == (found, len(found))
    assert ("ContentRange" in answer) == bool(range_)


def test_there_is_no_other_service(access):
    assert read_stack(access, stack="dev").bucket == str(access.folder)
    with pytest.raises(ConfigError, match="with --local there is no ec2 to ask"):
        access.client("ec2").describe_instances()
