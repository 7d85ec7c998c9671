"""Whoever merely reaches the port gets nothing: no listing, no call, no credentials, whatever names or pages
he brings.
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import urllib.parse
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from botocore.auth import S3SigV4Auth
from botocore.exceptions import ClientError

from trainer.aws.access import Access
from trainer.rehearsal.client import lease_server, stop_server
from trainer.rehearsal.server import EmbeddedAws

RUN = {"Action": "RunInstances", "Version": "2016-11-15", "MinCount": "1", "MaxCount": "1"}
Answer = tuple[int, dict[str, str], bytes]


def ask(
    url: str,
    method: str,
    path: str,
    *,
    body: str = "",
    headers: dict[str, str] | None = None,
    host: str | None = None,
) -> Answer:
    """Send one request as it stands, and return (status, headers, body)."""
    place = urllib.parse.urlsplit(url).netloc
    connection = http.client.HTTPConnection(place, timeout=500)
    connection.putrequest(method, path, skip_host=True)
    sent = {"Host": host or place, "Content-Length": str(len(body)), **(headers or {})}
    for name, value in sent.items():
        connection.putheader(name, value)
    connection.endheaders(body.encode())
    answer = connection.getresponse()
    result = answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    connection.close()
    return result


def code_of(failed: pytest.ExceptionInfo[ClientError]) -> str:
    return str(failed.value.response["Error"]["Code"])


def changed_after_signing(client: Any, change: Callable[[Any], None]) -> Any:
    """Return a client whose requests are changed between its signature and the socket."""
    client.meta.events.register("before-send.*", lambda request, **_: change(request))
    return client


def account_of(access: Access) -> str:
    return str(access.access_key)[4:16]


# --- no signature
# ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["AKIA{}0000", "ASIA{}0000", "AKIA{}DESK"])
def test_a_form_of_a_web_page_runs_nothing(aws_server: EmbeddedAws, desk: Any, key: str) -> None:
    credential = f"{key.format(account_of(desk.access))}/20261120/us-east-1/ec2/aws4_request"
    query = urllib.parse.urlencode({"X-Amz-Credential": credential})
    body = urllib.parse.urlencode({**RUN, "InstanceType": "g5.xlarge", "ImageId": desk.image_id})
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    status, _, _ = ask(aws_server.url, "POST", f"/?{query}", body=body, headers=headers)
    assert status == 403
    signature = f"AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders=host, Signature=0"
    headers["Authorization"] = signature
    status, _, _ = ask(aws_server.url, "POST", "/", body=body, headers=headers)
    assert status in (401, 403)
    assert desk.ec2.describe_instances()["Reservations"] == []


@pytest.mark.parametrize(
    "path", ["/", "/some-bucket", "/moto-api/", "/moto-api/reset", "/latest/meta-data/", "/favicon.ico"]
)
def test_unsigned_requests_read_nothing(aws_server: EmbeddedAws, path: str) -> None:
    for method in ("GET", "POST", "OPTIONS"):
        status, headers, _ = ask(aws_server.url, method, path)
        assert status == 403
        assert not [name for name in headers if name.startswith("access-control-")]


def test_motos_own_pages_are_closed_to_who_is_signed_in_too(access: Access) -> None:
    with pytest.raises(ClientError) as failed:
        access.client("s3").list_objects_v2(Bucket="moto-api")
    assert failed.value.response["ResponseMetadata"]["HTTPStatusCode"] in (403, 404)


# --- a foreign place
# -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [{"Origin": "https://example.org"}, {"Origin": "null"}, {"Host": "example.org"}, {"Host": "localhost"}],
    ids=lambda headers: " ".join(headers.values()),
)
def test_a_signed_request_from_a_foreign_place_is_refused(access: Access, headers: dict[str, str]) -> None:
    sts = access.client("sts", total_max_attempts=1)
    changed_after_signing(sts, lambda sent: sent.headers.update(headers))
    with pytest.raises(ClientError) as failed:
        sts.get_caller_identity()
    assert failed.value.response["ResponseMetadata"]["HTTPStatusCode"] == 403


def test_answers_say_nothing_of_cors(access: Access) -> None:
    for service, call in (("s3", "list_buckets"), ("sts", "get_caller_identity"), ("iam", "list_roles")):
        headers = getattr(access.client(service), call)()["ResponseMetadata"]["HTTPHeaders"]
        assert not [name for name in headers if name.startswith("access-control-")]


# --- signatures
# ------------------------------------------------------------------------------------------------------


def test_a_wrong_secret_is_refused_in_the_words_of_each_service(
    aws_server: EmbeddedAws, access: Access
) -> None:
    guess = replace(access, secret_key="rehearsal")
    for service, call in (("ec2", "describe_instances"), ("s3", "list_buckets"), ("iam", "list_roles")):
        with pytest.raises(ClientError) as failed:
            getattr(guess.client(service), call)()
        assert code_of(failed) == "SignatureDoesNotMatch"


@pytest.mark.parametrize(
    ("service", "call", "change"),
    [
        (
            "ec2",
            "describe_instances",
            lambda sent: setattr(sent, "body", b"Action=DescribeSnapshots&Version=2016-11-15"),
        ),
        ("s3", "list_buckets", lambda sent: sent.headers.update({"x-amz-acl": "public-read"})),
        ("s3", "list_buckets", lambda sent: setattr(sent, "url", f"{sent.url}?list-type=2")),
        ("s3", "list_buckets", lambda sent: setattr(sent, "method", "DELETE")),
    ],
    ids=["body", "header", "query", "method"],
)
def test_a_request_changed_after_signing_is_refused(
    access: Access, service: str, call: str, change: Callable[[Any], None]
) -> None:
    client = changed_after_signing(access.client(service, total_max_attempts=1), change)
    with pytest.raises(ClientError) as failed:
        getattr(client, call)()
    assert code_of(failed) == "SignatureDoesNotMatch"


def test_the_body_is_what_its_hash_says(access: Access) -> None:
    s3 = access.client("s3", total_max_attempts=1)
    s3.create_bucket(Bucket=f"hashed-{account_of(access)}")
    changed_after_signing(s3, lambda sent: setattr(sent, "body", b"other"))
    with pytest.raises(ClientError) as failed:
        s3.put_object(Bucket=f"hashed-{account_of(access)}", Key="key", Body=b"words")
    assert code_of(failed) == "XAmzContentSHA256Mismatch"


def test_signatures_expire_by_real_time_not_the_accounts_clock(
    aws_server: EmbeddedAws, access: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    sts = access.client("sts", total_max_attempts=1)
    aws_server.cloud(access).advance(3 * 3600)
    sts.get_caller_identity()
    late = datetime.now(timezone.utc).replace(tzinfo=None) - timedelta(minutes=16)
    monkeypatch.setattr("botocore.auth.get_current_datetime", lambda remove_tzinfo=True: late)
    with pytest.raises(ClientError) as failed:
        sts.get_caller_identity()
    assert code_of(failed) == "RequestTimeTooSkewed"


def test_a_presigned_url_is_refused(aws_server: EmbeddedAws, access: Access) -> None:
    bucket = f"presigned-{account_of(access)}"
    s3 = access.client("s3")
    s3.create_bucket(Bucket=bucket)
    s3.put_object(Bucket=bucket, Key="key", Body=b"words")
    url = urllib.parse.urlsplit(
        s3.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": "key"})
    )
    status, _, body = ask(aws_server.url, "GET", f"{url.path}?{url.query}")
    assert status == 403 and b"words" not in body


def test_an_upload_in_chunks_is_refused(access: Access) -> None:
    chunked = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
    s3 = access.client("s3", total_max_attempts=1)
    s3.create_bucket(Bucket=f"chunked-{account_of(access)}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(S3SigV4Auth, "payload", lambda *_: chunked)
        with pytest.raises(ClientError, match=f"does not take {chunked}"):
            s3.put_object(Bucket=f"chunked-{account_of(access)}", Key="key", Body=b"hello")


def test_odd_names_are_signed_as_boto3_signs_them(access: Access) -> None:
    bucket, key = f"odd-{account_of(access)}", "a b/ü+%2F//~!'()*=&?#ç.txt"
    s3 = access.client("s3")
    s3.create_bucket(Bucket=bucket)
    s3.put_object(
        Bucket=bucket, Key=key, Body=b"x" * 300_000, Metadata={"with_underscore": "a  b", "plain": " c "}
    )
    assert s3.head_object(Bucket=bucket, Key=key)["Metadata"]["with_underscore"] == "a  b"
    assert [one["Key"] for one in s3.list_objects_v2(Bucket=bucket, Prefix="a b/ü+")["Contents"]] == [key]


# --- principals
# ------------------------------------------------------------------------------------------------------


def test_every_principal_has_a_key_and_a_secret_of_its_own(aws_server: EmbeddedAws, access: Access) -> None:
    account = account_of(access)
    keys = aws_server.keyring.credentials
    known = [keys(account, kind, name) for kind in ("NODE", "FUNC", "TIME") for name in ("a", "b")]
    known += [keys(account), keys("999999999999")]
    assert len({one.access_key for one in known}) == len({one.secret_key for one in known}) == 8
    assert known[-2].secret_key == access.secret_key
    with EmbeddedAws(run_nodes=False) as other:
        assert other.keyring.credentials(account).secret_key != access.secret_key


def test_metadata_answers_who_knows_its_address_alone(aws_server: EmbeddedAws, desk: Any) -> None:
    mine, other = desk.launched(token="t1"), desk.launched(token="t2")
    address = urllib.parse.urlsplit(aws_server.nodes.metadata_url(aws_server.cloud(desk.access), mine)).path
    headers = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
    assert ask(aws_server.url, "PUT", f"{address}/latest/api/token", headers=headers)[0] == 200
    for path in (f"/imds/{mine}", f"/imds/{mine}/{'0' * 32}", address.replace(mine, other)):
        assert ask(aws_server.url, "PUT", f"{path}/latest/api/token", headers=headers)[0] == 404
    headers["Origin"] = "null"
    assert ask(aws_server.url, "PUT", f"{address}/latest/api/token", headers=headers)[0] == 403


# --- the server's own endpoints
# --------------------------------------------------------------------------------------


def test_the_servers_own_endpoints_ask_for_its_secret(root: Path) -> None:
    server = lease_server(root)
    for what, body in (
        ("lease", {"pid": os.getpid(), "root": str(root)}),
        ("release", {"lease": server.lease}),
        ("program", {"account": "000000000001"}),
        ("stop", {"root": str(root)}),
        ("anything", {}),
    ):
        status, _, _ = ask(server.url, "POST", f"/_rehearsal/{what}", body=json.dumps(body))
        assert status == 403, what
    lease_server(root).release()  # it is still there


def test_its_files_are_its_owners_alone(root: Path) -> None:
    server = lease_server(root)
    server.access().client("s3").create_bucket(Bucket="private")
    server.access().client("s3").put_object(Bucket="private", Key="k", Body=b"x")
    open_to_others = [path for path in (root, *root.rglob("*")) if path.stat().st_mode & 0o077]
    assert open_to_others == []
    assert stop_server(root)


ATTACK = """
import encodings.idna, glob, json, os, socket, sys, urllib.error, urllib.parse, urllib.request
import boto3
from botocore.config import Config

url, root, pids, instance_id, bucket, key, secret = json.loads(sys.stdin.readline())
CALLS = (("s3", "list_buckets"), ("ec2", "describe_instances"), ("ssm", "describe_parameters"), ("lambda", "list_functions"),
         ("scheduler", "list_schedules"), ("sts", "get_caller_identity"))

def calls(guessed, secret):
    for service, call in CALLS:
        client = boto3.client(service, region_name="us-east-1", endpoint_url=url, aws_access_key_id=guessed,
                              aws_secret_access_key=secret, config=Config(retries={"total_max_attempts": 1}))
        yield f"{service} {call} by {guessed}", getattr(client, call)

account = "000000000001"
guesses = (f"AKIA{account}0000", f"AKIA{account}DESK", f"ASIA{account}NODE0000000000000000", key)
ready = [one for guessed in guesses for one in calls(guessed, "rehearsal")]
control = [("control", call) for _, call in calls(key, secret)]  # else this would show nothing
os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
won = []

def attempt(name, act):
    try:
        won.append((name, str(act())[:200]))
    except Exception:
        pass

def web(method, path, headers={}, body=None):
    request = urllib.request.Request(url + path, data=body, headers=headers, method=method)
    return urllib.request.urlopen(request, timeout=500).read()

for name, call in (*ready, *control):
    attempt(name, call)
for guessed in guesses:
    scope = urllib.parse.urlencode({"X-Amz-Credential": f"{guessed}/20261120/us-east-1/ec2/aws4_request"})
    form = b"Action=RunInstances&Version=2016-11-15&MinCount=1&MaxCount=1&ImageId=ami-1"
    attempt("form", lambda: web("POST", f"/?{scope}", {"Origin": "https://example.org", "Host": "example.org"}, form))
for what in ("lease", "release", "program", "stop"):
    attempt(what, lambda: web("POST", f"/_rehearsal/{what}", {}, json.dumps({"root": root, "pid": os.getpid()}).encode()))
for path in ("/", f"/{bucket}", f"/{bucket}?list-type=2", "/moto-api/data.json", f"/imds/{instance_id}/latest/meta-data/"):
    attempt(path, lambda: web("GET", path))
attempt("token", lambda: web("PUT", f"/imds/{instance_id}/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "60"}))
attempt("folder", lambda: os.listdir(root))
for name in ("server.json", "server.log", "s3", f"sandbox/{instance_id}", "instances"):
    attempt(name, lambda: (os.listdir if os.path.isdir(f"{root}/{name}") else open)(f"{root}/{name}"))
for pid in pids:
    attempt(f"environment of {pid}", lambda: open(f"/proc/{pid}/environ").read())
    attempt(f"signal to {pid}", lambda: os.kill(pid, 0))
    attempt(f"folder of {pid}", lambda: os.listdir(f"/proc/{pid}/cwd"))
for folder in glob.glob("/tmp/mayfly-*"):
    attempt(folder, lambda: os.listdir(folder))
for line in open("/proc/net/unix"):
    path = line.split()[-1]
    if "mayfly" in path:
        attempt(path, lambda: socket.socket(socket.AF_UNIX).connect(path))
print(json.dumps(won))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_of_this_machine_gets_nothing(
    root: Path, make_desk: Callable[..., Any], wait_until: Callable[..., None]
) -> None:
    server = lease_server(root)
    access = server.access()
    access.client("s3").create_bucket(Bucket="models")
    user_data = b"#!/bin/sh\necho $$ > $MAYFLY_ROOT/pid\nsleep 600\n"
    instance_id = make_desk(access, user_data=user_data).launched()
    pid_file = root / "sandbox" / instance_id / "pid"
    wait_until(lambda: pid_file.exists() and bool(pid_file.read_text().strip()))
    pids = [server.pid, int(pid_file.read_text())]
    keys = [access.access_key, access.secret_key]
    known = json.dumps([server.url, str(root), pids, instance_id, "models", *keys])
    command = [sys.executable, "-c", ATTACK]
    ended = subprocess.run(command, input=known, capture_output=True, text=True, check=False, timeout=500)
    assert ended.returncode == 0, ended.stderr
    assert [name for name, _ in json.loads(ended.stdout)] == ["control"] * 6
    assert [one["State"]["Name"] for one in _instances(access)] == ["running"]


def _instances(access: Access) -> list[dict[str, Any]]:
    answer = access.client("ec2").describe_instances()
    return [one for reservation in answer["Reservations"] for one in reservation["Instances"]]
