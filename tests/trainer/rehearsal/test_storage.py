"""S3 and SSM: conditions that hold, one winner in a race, policies kept, the parameters by which AWS names
images.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from boto3.s3.transfer import S3Transfer
from botocore.exceptions import ClientError

from infra.policies import document
from tests.trainer.rehearsal.conftest import IMAGE_PARAMETER
from trainer.aws.access import Access
from trainer.aws.objects import open_objects
from trainer.rehearsal.server import EmbeddedAws


@pytest.fixture
def bucket(access: Access) -> str:
    assert access.access_key is not None
    name = f"bucket-{access.access_key[4:16]}"
    s3 = access.client("s3")
    s3.create_bucket(Bucket=name)
    s3.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
    return name


def status_of(failed: pytest.ExceptionInfo[ClientError]) -> int:
    return int(failed.value.response["ResponseMetadata"]["HTTPStatusCode"])


def test_a_copy_onto_another_etag_is_refused(access: Access, bucket: str) -> None:
    s3 = access.client("s3")
    champion = s3.put_object(Bucket=bucket, Key="production", Body=b"champion")["ETag"]
    s3.put_object(Bucket=bucket, Key="challenger", Body=b"challenger")
    source = {"Bucket": bucket, "Key": "challenger"}
    with pytest.raises(ClientError) as failed:
        s3.copy_object(Bucket=bucket, Key="production", CopySource=source, IfMatch='"0123"')
    assert status_of(failed) == 412
    assert s3.get_object(Bucket=bucket, Key="production")["Body"].read() == b"champion"
    s3.copy_object(Bucket=bucket, Key="production", CopySource=source, IfMatch=champion)
    assert s3.get_object(Bucket=bucket, Key="production")["Body"].read() == b"challenger"


def test_a_copy_without_a_target_is_a_first_one_or_not_found(access: Access, bucket: str) -> None:
    s3 = access.client("s3")
    s3.put_object(Bucket=bucket, Key="challenger", Body=b"challenger")
    source = {"Bucket": bucket, "Key": "challenger"}
    with pytest.raises(ClientError) as failed:
        s3.copy_object(Bucket=bucket, Key="production", CopySource=source, IfMatch='"0123"')
    assert status_of(failed) == 404
    s3.copy_object(Bucket=bucket, Key="production", CopySource=source, IfNoneMatch="*")
    with pytest.raises(ClientError) as failed:
        s3.copy_object(Bucket=bucket, Key="production", CopySource=source, IfNoneMatch="*")
    assert status_of(failed) == 412


def test_one_writer_wins_a_race(access: Access, bucket: str) -> None:
    outcomes: list[str] = []

    def write(body: bytes) -> None:
        try:
            access.client("s3").put_object(Bucket=bucket, Key="record", Body=body, IfNoneMatch="*")
            outcomes.append("won")
        except ClientError as error:
            outcomes.append(str(error.response["Error"]["Code"]))

    threads = [threading.Thread(target=write, args=(f"{number}".encode(),)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes.count("won") == 1
    assert set(outcomes) <= {"won", "PreconditionFailed", "ConditionalRequestConflict"}
    assert len(access.client("s3").list_object_versions(Bucket=bucket)["Versions"]) == 1


def test_large_bodies_pass_whole(access: Access, bucket: str, tmp_path: Any) -> None:
    body = bytes(range(256)) * 80_000  # 20 MB: several parts, in threads
    (tmp_path / "large").write_bytes(body)
    s3 = access.client("s3")
    S3Transfer(s3).upload_file(str(tmp_path / "large"), bucket, "large")
    assert s3.get_object(Bucket=bucket, Key="large")["Body"].read() == body
    assert s3.get_object(Bucket=bucket, Key="large", Range="bytes=256-511")["Body"].read() == body[256:512]


def test_a_marker_hides_an_object_and_versions_can_be_deleted(access: Access, bucket: str) -> None:
    s3 = access.client("s3")
    s3.put_object(Bucket=bucket, Key="a", Body=b"1")
    marker = s3.delete_object(Bucket=bucket, Key="a")["VersionId"]
    with pytest.raises(ClientError, match="NoSuchKey"):
        s3.get_object(Bucket=bucket, Key="a")
    s3.delete_object(Bucket=bucket, Key="a", VersionId=marker)
    assert s3.get_object(Bucket=bucket, Key="a")["Body"].read() == b"1"
    (version,) = s3.list_object_versions(Bucket=bucket)["Versions"]
    s3.delete_object(Bucket=bucket, Key="a", VersionId=version["VersionId"])
    with pytest.raises(ClientError, match="NoSuchBucket"):
        s3.put_object(Bucket=f"{bucket}-b", Key="a", Body=b"1")


def test_without_versioning_an_object_is_replaced(access: Access) -> None:
    s3, name = access.client("s3"), f"plain-{str(access.access_key)[4:16]}"
    s3.create_bucket(Bucket=name)
    for body in (b"1", b"2"):
        assert "VersionId" not in s3.put_object(Bucket=name, Key="a/b", Body=body)
    (version,) = s3.list_object_versions(Bucket=name)["Versions"]
    assert (version["VersionId"], version["Size"]) == ("null", 1)
    s3.delete_object(Bucket=name, Key="a/b")
    assert "Contents" not in s3.list_objects_v2(Bucket=name)


def test_a_tls_only_policy_is_kept_and_stands_in_nobodys_way(access: Access, bucket: str) -> None:
    s3 = access.client("s3")
    denied = {"Effect": "Deny", "Principal": "*", "Action": "s3:*", "Resource": f"arn:aws:s3:::{bucket}/*"}
    policy = document({**denied, "Condition": {"Bool": {"aws:SecureTransport": "false"}}})
    with pytest.raises(ClientError):
        s3.get_bucket_policy(Bucket=bucket)
    s3.put_bucket_policy(Bucket=bucket, Policy=json.dumps(policy))
    assert json.loads(s3.get_bucket_policy(Bucket=bucket)["Policy"]) == policy
    s3.put_object(Bucket=bucket, Key="key", Body=b"still works")


def test_image_parameters_stand_beside_our_own(access: Access) -> None:
    ssm = access.client("ssm")
    ssm.put_parameter(Name="/mayfly/mayfly/dev", Value="{}", Type="String")
    answer = ssm.get_parameters(Names=[IMAGE_PARAMETER, "/mayfly/mayfly/dev", "/nothing"])
    assert {one["Name"] for one in answer["Parameters"]} == {IMAGE_PARAMETER, "/mayfly/mayfly/dev"}
    assert answer["InvalidParameters"] == ["/nothing"]


def test_a_parameter_is_there_while_it_is_created_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, read = "/mayfly/mayfly/dev", list[str]()
    with EmbeddedAws(tmp_path / "root", run_nodes=False, fire_schedules=False) as aws:
        access = aws.access("900000000021")
        ssm, cloud = access.client("ssm"), aws.cloud(access)
        ssm.put_parameter(Name=name, Value="{}", Type="String")
        cloud.restored_parameters.add(name)
        reader = threading.Thread(
            target=lambda: read.append(ssm.get_parameter(Name=name)["Parameter"]["Value"]), daemon=True
        )
        moto = cloud.moto

        def slowly(service: str, operation: str, params: dict[str, Any]) -> dict[str, Any]:
            answer = moto(service, operation, params)
            if operation == "DeleteParameter":
                reader.start()
                reader.join(1)  # it ends meanwhile only if it sees the gap
            return answer

        monkeypatch.setattr(cloud, "moto", slowly)
        access.client("ssm").put_parameter(Name=name, Value="{}", Type="String")
        reader.join(30)
    assert read == ["{}"]


def test_s3_checks_a_writers_hash_and_keeps_it_for_copies(access: Access, bucket: str) -> None:
    s3 = access.client("s3", total_max_attempts=1)
    sha256 = base64.b64encode(hashlib.sha256(b"bars").digest()).decode()
    with pytest.raises(ClientError, match="BadDigest"):
        s3.put_object(Bucket=bucket, Key="torn", Body=b"other bars", ChecksumSHA256=sha256)
    s3.put_object(Bucket=bucket, Key="whole", Body=b"bars", ChecksumSHA256=sha256)
    s3.put_object(Bucket=bucket, Key="claimed", Body=b"other bars", Metadata={"sha256": sha256})
    other = base64.b64encode(hashlib.sha256(b"other bars").digest()).decode()
    for key, kept in (("whole", sha256), ("claimed", other)):
        s3.copy_object(
            Bucket=bucket, Key="copy", CopySource={"Bucket": bucket, "Key": key}, ChecksumAlgorithm="SHA256",
            MetadataDirective="REPLACE", Metadata={"sha256": "ours"},
        )  # fmt: skip
        head = s3.head_object(Bucket=bucket, Key="copy", ChecksumMode="ENABLED")
        assert (head["ChecksumSHA256"], head["Metadata"]) == (kept, {"sha256": "ours"})
    objects = open_objects(access, bucket)
    assert objects.head(key="whole").checksum == hashlib.sha256(b"bars").hexdigest()  # type: ignore[union-attr]
    assert objects.head(key="claimed").checksum == ""  # type: ignore[union-attr]
    version = objects.head(key="claimed").version_id  # type: ignore[union-attr]
    assert objects.digest(key="claimed", version_id=version) == hashlib.sha256(b"other bars").hexdigest()
    assert objects.digest(key="nothing", version_id="") == ""
