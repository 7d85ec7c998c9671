"""Objects of a run in S3, against the embedded AWS: compare-and-swap, versions, hashes, and unknown runs."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.sessions import forget_sessions
from trainer.aws.objects import Conflict, S3Objects, SpoiledObject, given, open_objects
from trainer.base.errors import ConfigError, ConnectionFailed, NotVersioned, PermissionDenied, UsageError
from trainer.runs.store import RecordMissing, create_record, find_run, read_record, run_ids, swap_record


@pytest.fixture
def objects(access, bucket):
    return open_objects(access, bucket)


def test_a_record_is_created_once_and_read_back_as_it_was(objects, make_record):
    record = make_record()
    create_record(objects, record)
    assert read_record(objects, record.run_id)[0] == record
    with pytest.raises(Conflict):
        create_record(objects, record)


def test_of_two_writers_who_read_the_same_record_one_loses(objects, make_record):
    record = make_record()
    create_record(objects, record)
    _, etag = read_record(objects, record.run_id)
    swap_record(objects, replace(record, owner="first"), etag)
    with pytest.raises(Conflict):
        swap_record(objects, replace(record, owner="second"), etag)
    assert read_record(objects, record.run_id)[0].owner == "first"


def test_a_write_with_a_lost_answer_is_no_conflict(aws_server, access, objects, make_record):
    record = make_record()
    # botocore repeats it, and S3 refuses that
    aws_server.world(access).fail_next("PutObject", "InternalError", after=True)
    create_record(objects, record)
    _, etag = read_record(objects, record.run_id)
    aws_server.world(access).fail_next("PutObject", "InternalError", after=True)
    etag = swap_record(objects, replace(record, owner="first"), etag)
    assert read_record(objects, record.run_id) == (replace(record, owner="first"), etag)
    # it never arrived, and another writer is first
    aws_server.world(access).fail_next("PutObject", "InternalError")
    with pytest.raises(Conflict):
        create_record(objects, record)


def test_an_object_that_was_read_and_is_not_found_is_no_conflict(objects, make_record):
    with pytest.raises(ConnectionFailed, match="was there and is not found now"):
        swap_record(objects, make_record(), '"an-etag-of-before"')
    with pytest.raises(RecordMissing, match="is not found now"):
        read_record(objects, make_record().run_id, seen=True)


def test_an_object_without_a_version_is_an_error(access, objects, make_record):
    bucket = f"mayfly-unversioned-{access.access_key[4:16]}"
    access.client("s3").create_bucket(Bucket=bucket)
    with pytest.raises(NotVersioned, match="Wait a quarter of an hour after the first pulumi up"):
        create_record(open_objects(access, bucket), make_record())
    unversioned = open_objects(access, bucket)
    copied = {"source": f"runs/{make_record().run_id}/run.json", "version_id": "null", "key": "copy"}
    with pytest.raises(NotVersioned, match="keeps s3://.*/copy without a version"):
        unversioned.copy(**copied)


def test_a_copy_is_a_version_of_its_own(objects):
    objects.put(key="k", body=b"one")
    objects.copy(source="k", version_id=objects.head(key="k").version_id, key="copy")
    assert objects.get(key="copy", version_id=objects.head(key="copy").version_id).body == b"one"


def test_an_unknown_run_is_refused_with_the_nearest_ids(objects, make_record):
    with pytest.raises(UsageError, match="There is no run yet"):
        read_record(objects, "20261120-120000-crypto-k3v8")
    create_record(objects, make_record())
    with pytest.raises(UsageError, match="Did you mean 20261120-120000-crypto-k3v9"):
        read_record(objects, "20261120-120000-crypto-k3v8")


class Failing:
    """An S3 that answers each request with an error."""

    def __init__(self, code: str) -> None:
        self.error = ClientError({"Error": {"Code": code, "Message": "no"}}, "GetObject")

    def get_object(self, **asked: Any) -> None:
        raise self.error

    head_object = copy_object = get_object


@pytest.mark.parametrize(
    "code", ["InvalidObjectState", "InvalidRequest", "KMS.DisabledException", "400", "405"]
)
def test_an_object_spoiled_by_its_writer_counts_as_empty(code):
    objects = S3Objects(Failing(code), "b")
    for ask in (objects.get, objects.head):
        stored = given(lambda ask=ask: ask(key="k"))
        assert stored is not None and (stored.key, stored.body) == ("", b"")


@pytest.mark.parametrize("code", ["SlowDown", "AccessDenied", "PendingVerification", "ACodeOfNextYear"])
def test_an_object_that_s3_fails_to_return_is_not_lost(code):
    objects = S3Objects(Failing(code), "b")
    for ask in (objects.get, objects.head):
        with pytest.raises(ConfigError, match=code):
            given(lambda ask=ask: ask(key="k"))


def test_expired_credentials_spoil_no_object():
    """HEAD's answer has no body, and so no code but its status: 400, as for an object under a node's own key."""
    s3 = Failing("400")
    s3.get_object = Failing("ExpiredToken").get_object
    with pytest.raises(PermissionDenied, match="ExpiredToken.*Sign in again"):
        given(lambda: S3Objects(s3, "b").head(key="k"))


@pytest.mark.parametrize(
    ("code", "is_spoiled"), [("ObjectNotInActiveTierError", True), ("InvalidRequest", False)]
)
def test_a_copy_of_an_archived_object_finds_it_spoiled(code, is_spoiled):
    """The other code may mean a source that is too large: that is no fault of its writer's."""
    with pytest.raises(ConfigError, match=code) as error:
        S3Objects(Failing(code), "b").copy(source="k", version_id="v", key="copy")
    assert isinstance(error.value, SpoiledObject) == is_spoiled


def test_run_ids_are_listed_oldest_first(objects, make_record):
    for run_id in ("20261121-000000-b-aaaa", "20261120-000000-z-bbbb"):
        create_record(objects, make_record(run_id=run_id))
    assert run_ids(objects) == ("20261120-000000-z-bbbb", "20261121-000000-b-aaaa")


def test_a_version_stays_readable_after_it_was_replaced(objects):
    objects.put(key="k", body=b"one")
    version = objects.head(key="k").version_id
    objects.put(key="k", body=b"two")
    assert objects.get(key="k").body == b"two"
    assert objects.get(key="k", version_id=version).body == b"one"
    assert objects.get(key="k", version_id="no-such-version") is None
    assert objects.get(key="nothing") is None


def test_the_hash_of_an_object_is_what_its_writer_said(access, bucket, objects):
    digest = hashlib.sha256(b"weights").hexdigest()
    s3 = access.client("s3")
    s3.put_object(Bucket=bucket, Key="m", Body=b"weights", Metadata={"sha256": digest})
    assert objects.head(key="m").sha256 == digest
    s3.put_object(Bucket=bucket, Key="n", Body=b"weights", ChecksumAlgorithm="SHA256")
    assert objects.head(key="n").sha256 == digest


def test_missing_credentials_are_no_missing_run(monkeypatch, access):
    from trainer.aws.access import Access

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    forget_sessions()  # an earlier test's would have its credentials
    with pytest.raises(PermissionDenied, match="Unable to locate credentials"):
        open_objects(Access(region="us-east-1", endpoint_url=access.endpoint_url), "b").get(key="k")
    forget_sessions()


def test_a_run_is_named_by_its_id_a_unique_part_or_last(objects, make_record):
    older, newer = "20261120-120000-crypto-k3v9", "20261121-120000-crypto-m4w8"
    for run_id in (older, newer):
        create_record(objects, replace(make_record(), run_id=run_id))
    objects.put(key="runs/20261122-120000-crypto-p5x7/manifest.json", body=b"{}")  # killed before its record
    assert find_run(objects, older) == find_run(objects, "k3v9") == find_run(objects, "20261120") == older
    assert find_run(objects, "last") == newer
    assert [find_run(objects, name) for name in ("", "none")] == ["", "none"]  # read_record refuses them
    with pytest.raises(UsageError, match=r"'crypto' is a part of 3 runs' ids \(.*p5x7, .*m4w8, .*k3v9\)"):
        find_run(objects, "crypto")


def test_without_a_run_there_is_no_last_one(objects):
    with pytest.raises(UsageError, match=r"there is no run yet\. Start one with mayfly launch\."):
        find_run(objects, "last")
