from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, NoCredentialsError, NoRegionError

from trainer.access import Access, aws_error
from trainer.errors import ConfigError, ConnectionFailed, PermissionDenied

REHEARSAL = Access(
    region="us-east-1", endpoint_url="http://127.0.0.1:1", access_key="AKIA0000000000010000", secret_key="x", rehearsal=True
)


def test_a_rehearsal_is_deaf_to_the_users_aws_settings(monkeypatch):
    monkeypatch.setenv("AWS_PROFILE", "no-such-profile")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    client = REHEARSAL.client("ec2")
    assert (client.meta.region_name, client.meta.endpoint_url) == ("us-east-1", "http://127.0.0.1:1")


def test_many_threads_may_ask_for_clients_at_once():
    with ThreadPoolExecutor(max_workers=8) as pool:
        clients = list(pool.map(REHEARSAL.client, ["s3", "ssm", "ec2", "scheduler"] * 8))
    assert {client.meta.service_model.service_name for client in clients} == {"s3", "ssm", "ec2", "scheduler"}


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ClientError({"Error": {"Code": "UnauthorizedOperation"}}, "RunInstances"), PermissionDenied),
        (ClientError({"Error": {"Code": "ThrottlingException"}}, "GetParameter"), ConnectionFailed),
        (ClientError({"Error": {"Code": "X"}, "ResponseMetadata": {"HTTPStatusCode": 503}}, "GetObject"), ConnectionFailed),
        (ClientError({"Error": {"Code": "NoSuchBucket"}}, "GetObject"), ConfigError),
        (NoCredentialsError(), PermissionDenied),
        (NoRegionError(), ConfigError),
        (EndpointConnectionError(endpoint_url="x"), ConnectionFailed),
    ],
)
def test_errors_are_told_apart_by_code_and_never_by_guess(error, expected):
    ours = aws_error(error, "cannot do it")
    assert type(ours) is expected
    assert ours.what == "cannot do it"
