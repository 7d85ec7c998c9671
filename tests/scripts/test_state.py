"""The bucket of Pulumi's state, as `scripts/state` makes it on the embedded AWS."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from scripts import state
from tests.sessions import forget_sessions, sign_in
from trainer.aws.access import Access, own_access
from trainer.aws.place import ACCOUNT
from trainer.base.errors import PermissionDenied


def bucket_of(url: str) -> str:
    name, _, rest = url.removeprefix("s3://").partition("?")
    assert rest == "region=us-east-1"
    return name


def test_the_bucket_of_pulumis_state_is_versioned_and_closed(access: Access) -> None:
    bucket, s3 = bucket_of(state.state_url(access)), access.client("s3")
    account = access.client("sts").get_caller_identity()["Account"]
    assert bucket == f"mayfly-state-{account}-us-east-1"
    assert s3.get_bucket_versioning(Bucket=bucket)["Status"] == "Enabled"
    block = s3.get_public_access_block(Bucket=bucket)["PublicAccessBlockConfiguration"]
    assert len(block) == 4 and all(block.values())
    encrypted = s3.get_bucket_encryption(Bucket=bucket)["ServerSideEncryptionConfiguration"]["Rules"]
    assert encrypted[0]["ApplyServerSideEncryptionByDefault"] == {"SSEAlgorithm": "AES256"}
    (refused,) = json.loads(s3.get_bucket_policy(Bucket=bucket)["Policy"])["Statement"]
    assert (refused["Effect"], refused["Condition"]) == ("Deny", {"Bool": {"aws:SecureTransport": "false"}})
    assert refused["Resource"] == [f"arn:aws:s3:::{bucket}", f"arn:aws:s3:::{bucket}/*"]


def test_a_second_run_keeps_the_state_and_closes_it_again(access: Access) -> None:
    url, s3 = state.state_url(access), access.client("s3")
    bucket = bucket_of(url)
    s3.put_object(Bucket=bucket, Key=".pulumi/stacks/mayfly/dev.json", Body=b"{}")
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Suspended"})
    assert state.state_url(access) == url
    assert s3.get_bucket_versioning(Bucket=bucket)["Status"] == "Enabled"
    assert s3.get_object(Bucket=bucket, Key=".pulumi/stacks/mayfly/dev.json")["Body"].read() == b"{}"


def test_without_permission_one_line_names_the_bucket(access: Access) -> None:
    access.client("iam").create_user(UserName="guest")
    key = access.client("iam").create_access_key(UserName="guest")["AccessKey"]
    guest = replace(access, access_key=key["AccessKeyId"], secret_key=key["SecretAccessKey"])
    with pytest.raises(PermissionDenied, match="cannot make the bucket of Pulumi's state, mayfly-state-"):
        state.state_url(guest)


@pytest.fixture
def signed_in(access: Access, monkeypatch: pytest.MonkeyPatch):
    """Take the embedded AWS, as AWS's own variables name it, for an account."""
    sign_in(access, monkeypatch)
    monkeypatch.setattr(state, "own_access", lambda: replace(own_access(), place=ACCOUNT))
    yield access
    forget_sessions()


def test_pulumi_is_logged_in_to_the_bucket(
    signed_in: Access, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "pulumi"
    fake.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/called\nexit 3\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert state.main() == 3  # Pulumi's own
    verb, url = (tmp_path / "called").read_text().split()
    assert verb == "login" and bucket_of(url).startswith("mayfly-state-")


def test_without_pulumi_the_line_to_type_is_printed(
    signed_in: Access, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert state.main() == 0
    said = capsys.readouterr().err
    assert "pulumi login 's3://mayfly-state-" in said and said.endswith("?region=us-east-1'\n")


def test_a_rehearsing_shell_has_no_state(
    access: Access, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sign_in(access, monkeypatch)
    assert state.main() == 2
    assert capsys.readouterr().err.startswith("error: this shell's AWS is a rehearsal")
    forget_sessions()
