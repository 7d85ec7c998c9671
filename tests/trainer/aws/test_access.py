from __future__ import annotations

import gc
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from typing import Any

import botocore
import pytest
from botocore.awsrequest import AWSResponse, HeadersDict
from botocore.exceptions import (
    ClientError,
    ConnectionClosedError,
    EndpointConnectionError,
    HTTPClientError,
    IncompleteReadError,
    NoCredentialsError,
    NoRegionError,
    ResponseStreamingError,
)
from botocore.response import StreamingBody
from botocore.utils import parse_timestamp
from urllib3.exceptions import SSLError

from tests.sessions import forget_sessions
from trainer import __version__
from trainer.aws.access import Access, aws_error, begin_calls, moment_of, own_access, user_session
from trainer.aws.place import ACCOUNT, REHEARSAL
from trainer.base.errors import ConfigError, ConnectionFailed, EmbeddedAwsGone, PermissionDenied

EMBEDDED = Access(
    region="us-east-1",
    endpoint_url="http://127.0.0.1:1",
    access_key="AKIA0000000000010000",
    secret_key="x",
    place=REHEARSAL,
)


def test_a_rehearsal_ignores_the_users_aws_settings(monkeypatch):
    monkeypatch.setenv("AWS_PROFILE", "no-such-profile")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    client = EMBEDDED.client("ec2")
    assert (client.meta.region_name, client.meta.endpoint_url) == ("us-east-1", "http://127.0.0.1:1")


def test_requests_say_that_mayfly_sends_them():
    client = Access(region="us-east-1", access_key="AKIA", secret_key="secret").client("sts")
    sent = []

    def answer(request, **_):
        sent.append(request.headers["User-Agent"].decode())
        return AWSResponse(request.url, 200, {}, RawResponse(b""))

    client.meta.events.register_first("before-send.sts", answer)
    with pytest.raises(HTTPClientError):  # for the answer has no body
        client.get_caller_identity()
    assert sent[0] == f"Mayfly/{__version__} Botocore/{botocore.__version__}"


def test_calls_begin_in_order_so_many_at_a_time():
    began, free = [], threading.Event()

    def ask(number):
        began.append(number)
        assert free.wait(60)
        return number * 10

    calls = begin_calls([partial(ask, number) for number in range(5)], most=2)
    for one in calls[3:]:
        assert one.cancel()  # two are under way
    free.set()
    assert [one.result(timeout=60) for one in calls[:3]] == [0, 10, 20]
    assert set(began[:2]) == {0, 1} and began[2:] == [2]
    (failed,) = begin_calls([lambda: 1 // 0], most=1)
    with pytest.raises(ZeroDivisionError):
        failed.result(timeout=60)
    assert begin_calls([], most=2) == []


def test_no_process_waits_at_its_end_for_a_call_that_is_late():
    late = """if True:
        import threading
        from trainer.base.errors import ConnectionFailed
        from trainer.control.reported import at_once
        from trainer.launch.preflight import ask_at_once

        never = threading.Event()
        for ask in (
            lambda: ask_at_once({"the prices": never.wait}, seconds=0.01, doing="cannot look up"),
            lambda: at_once([1], lambda one: never.wait(), "models", seconds=0.01),
        ):
            try:
                ask()
            except ConnectionFailed as error:
                print(error.what)
    """
    ended = subprocess.run(
        [sys.executable, "-c", late], capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout.splitlines() == [
        "cannot look up the prices",
        "S3 did not describe the 1 models within 0 s",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-27T18:00:01.500Z",
        "2026-11-27T18:00:01Z",
        "2026-11-27T18:00:01+02:00",
        "2026-11-27T18:00:01",  # UTC
        "2026-11-27",
        "Fri, 27 Nov 2026 18:00:01 GMT",
        "Fri, 27 Nov 2026 18:00:01 -0000",
        "1795802401",
        "1795802401.5",
        1795802401,
        1795802401.5,
    ],
)
def test_times_are_read_as_botocore_reads_them(text):
    moment = moment_of(text)
    assert moment == parse_timestamp(text) and moment.utcoffset() == parse_timestamp(text).utcoffset()


def test_a_time_that_is_none_is_refused():
    with pytest.raises(ValueError, match="nonsense"):
        moment_of("nonsense")


@pytest.mark.parametrize(("size", "asks"), [(2 << 20, False), ((2 << 20) + 1, True)])
def test_small_bodies_are_sent_without_a_question(size, asks):
    client = Access(region="us-east-1", access_key="AKIA", secret_key="secret").client("s3")
    sent = []

    def answer(request, **_):
        sent.append("Expect" in request.headers)
        return AWSResponse(request.url, 200, {"ETag": "e"}, RawResponse(b""))

    client.meta.events.register_first("before-send.s3", answer, unique_id="size")
    try:
        client.put_object(Bucket="bucket", Key="key", Body=BytesIO(bytes(size)))
    finally:
        client.meta.events.unregister("before-send.s3", unique_id="size")
    assert sent == [asks]


def test_a_client_that_is_there_leaves_garbage_to_the_collector():
    """What is alive as a client is made stays; frozen at each request for it, all later garbage would stay, too."""
    EMBEDDED.client("s3")
    frozen = gc.get_freeze_count()
    kept = [[] for _ in range(1000)]
    EMBEDDED.client("s3")
    assert gc.get_freeze_count() <= frozen and gc.isenabled() and kept


def test_many_threads_may_ask_for_clients_at_once():
    with ThreadPoolExecutor(max_workers=8) as pool:
        clients = list(pool.map(EMBEDDED.client, ["s3", "ssm", "ec2", "scheduler"] * 8))
    assert {client.meta.service_model.service_name for client in clients} == {"s3", "ssm", "ec2", "scheduler"}


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ClientError({"Error": {"Code": "UnauthorizedOperation"}}, "RunInstances"), PermissionDenied),
        (ClientError({"Error": {"Code": "ThrottlingException"}}, "GetParameter"), ConnectionFailed),
        (
            ClientError({"Error": {"Code": "X"}, "ResponseMetadata": {"HTTPStatusCode": 503}}, "GetObject"),
            ConnectionFailed,
        ),
        (ClientError({"Error": {"Code": "NoSuchBucket"}}, "GetObject"), ConfigError),
        (ClientError({"Error": {"Code": "400", "Message": "Bad Request"}}, "HeadObject"), PermissionDenied),
        (NoCredentialsError(), PermissionDenied),
        (NoRegionError(), ConfigError),
        (EndpointConnectionError(endpoint_url="https://ec2.us-east-1.amazonaws.com/"), ConnectionFailed),
    ],
)
def test_errors_are_told_apart_by_code_and_never_by_guess(error, expected):
    ours = aws_error(error, "cannot do it")
    assert type(ours) is expected
    assert ours.what == "cannot do it"


@pytest.mark.parametrize("url", ["localhost:4566", "http://["])
def test_an_endpoint_that_is_no_url_is_one_line(monkeypatch, url):
    monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    forget_sessions()
    with pytest.raises(ConfigError, match=r"ssm can't be asked \(Invalid.*AWS_ENDPOINT_URL"):
        Access(region="us-east-1").client("ssm")


class RawResponse(BytesIO):
    def stream(self, **_):
        yield self.read()


@contextmanager
def answered(service: str, status: int, headers: dict[str, str], raw: RawResponse) -> Iterator[Any]:
    """Yield a client whose requests all have one response."""
    client = EMBEDDED.client(service)

    def answer(**_):
        return AWSResponse("http://127.0.0.1:1", status, HeadersDict(headers), raw)

    client.meta.events.register(f"before-send.{service}", answer, unique_id="answer")
    try:
        yield client
    finally:
        client.meta.events.unregister(f"before-send.{service}", unique_id="answer")


KEYED = {"Bucket": "b", "Key": "k"}
PAGE = b"\n<!DOCTYPE html><html><body><h1>Hotel WiFi</h1><p>Accept<br></body></html>"


@pytest.mark.parametrize(
    ("service", "operation", "asked", "status", "headers", "body", "why"),
    [
        ("ec2", "describe_instances", {}, 200, {}, b"", "NoAnswer"),
        ("ec2", "describe_instances", {}, 200, {}, b"<DescribeInstancesResp", "NoAnswer"),
        ("ssm", "get_parameter", {"Name": "n"}, 200, {"Content-Length": "40"}, b'{"Para', "after 6 of 40"),
        ("ssm", "get_parameter", {"Name": "n"}, 200, {}, b"", "no body"),
        ("ssm", "get_parameter", {"Name": "n"}, 200, {}, PAGE, "a web page .* status 200"),
        ("ssm", "get_parameter", {"Name": "n"}, 403, {}, PAGE, "a web page .* status 403"),
        ("s3", "list_objects_v2", {"Bucket": "b"}, 200, {}, b"", "no body"),
        ("s3", "list_objects_v2", {"Bucket": "b"}, 200, {}, b"<html><body></body></html>", "a web page"),
        ("s3", "get_object", KEYED, 200, {}, PAGE, "no ETag"),
        ("lambda", "invoke", {"FunctionName": "f"}, 200, {"Content-Type": "text/html"}, PAGE, "a web page"),
        ("s3", "head_object", KEYED, 200, {"Content-Length": "9"}, b"", "no ETag"),
        ("s3", "put_object", {"Bucket": "b", "Key": "k", "Body": b""}, 200, {}, b"", "no ETag"),
    ],
)
def test_no_whole_answer_is_a_failed_connection(service, operation, asked, status, headers, body, why):
    with (
        answered(service, status, headers, RawResponse(body)) as client,
        pytest.raises(HTTPClientError) as lost,
    ):
        getattr(client, operation)(**asked)
    ours = aws_error(lost.value, "cannot look")
    assert type(ours) is ConnectionFailed
    assert re.search(why, ours.why)
    assert "<" not in ours.why or operation == "describe_instances"


@pytest.mark.parametrize(
    ("service", "operation", "asked", "status", "headers", "body"),
    [
        ("s3", "head_object", KEYED, 200, {"ETag": "e", "Content-Length": "9"}, b""),
        ("s3", "get_object", KEYED, 200, {"ETag": "e", "Content-Type": "text/html"}, PAGE),
        ("s3", "delete_object", KEYED, 204, {}, b""),
        ("s3", "put_object", {"Bucket": "b", "Key": "k", "Body": b""}, 200, {"ETag": "e"}, b""),
        ("scheduler", "delete_schedule", {"Name": "n"}, 200, {"Content-Length": "0"}, b""),
        ("sqs", "purge_queue", {"QueueUrl": "https://sqs/1/q"}, 200, {}, b""),
    ],
)
def test_an_answer_that_looks_odd_may_be_whole(service, operation, asked, status, headers, body):
    with answered(service, status, headers, RawResponse(body)) as client:
        assert getattr(client, operation)(**asked)["ResponseMetadata"]["HTTPStatusCode"] == status


def test_a_body_that_ends_early_is_a_failed_connection():
    with pytest.raises(IncompleteReadError) as lost:
        list(StreamingBody(BytesIO(b"cut off"), content_length=100).iter_chunks(10))
    assert type(aws_error(lost.value, "cannot read")) is ConnectionFailed


@pytest.mark.parametrize("read", [lambda body: body.read(), lambda body: [*body.iter_chunks(10)]])
def test_a_body_that_tls_refuses_is_a_failed_connection(read):
    class Garbled(RawResponse):
        def read(self, *_):
            raise SSLError("decryption failed or bad record mac")

    with (
        answered("s3", 200, {"ETag": "e"}, Garbled()) as client,
        pytest.raises(ResponseStreamingError) as lost,
    ):
        read(client.get_object(Bucket="b", Key="k")["Body"])
    assert type(aws_error(lost.value, "cannot read")) is ConnectionFailed


class HalfAnswers(BaseHTTPRequestHandler):
    """Breaks the connection off in the middle of each answer: an error, in chunks, as S3 sends them."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.send_response(404)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.write(b"64\r\n<Error><Code>NoSuch")
        self.close_connection = True

    def log_message(self, *_):
        """Print nothing."""


def test_half_an_error_about_an_object_is_a_failed_connection():
    with ThreadingHTTPServer(("127.0.0.1", 0), HalfAnswers) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        try:
            url = f"http://127.0.0.1:{server.server_port}"
            client = replace(EMBEDDED, endpoint_url=url).client("s3", total_max_attempts=1)
            with pytest.raises(ConnectionClosedError) as lost:
                client.get_object(Bucket="b", Key="k")
        finally:
            server.shutdown()
    assert type(aws_error(lost.value, "cannot read")) is ConnectionFailed


def test_an_embedded_aws_that_has_ended_is_said_as_such():
    ours = aws_error(
        EndpointConnectionError(endpoint_url="http://127.0.0.1:4566/"), "cannot describe the instances"
    )
    assert type(ours) is EmbeddedAwsGone
    assert str(ours).startswith("cannot describe the instances: the embedded AWS has ended (")


@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
@pytest.mark.parametrize("whose", ["rehearsal", "node"])
def test_a_proxy_sees_nothing_of_a_rehearsal(aws_server, access, monkeypatch, name, whose):
    monkeypatch.setenv(name, "http://127.0.0.1:9")  # where nobody listens
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    if whose == "node":  # which finds its credentials itself, and only knows its endpoint
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", access.access_key)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", access.secret_key)
        forget_sessions()
        access = Access(region="us-east-1", endpoint_url=access.endpoint_url)
    assert access.client("sts", total_max_attempts=1).get_caller_identity()["Account"]
    forget_sessions()


def test_a_shell_that_borrows_the_embedded_aws_is_a_rehearsal(aws_server, access, monkeypatch, tmp_path):
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_DEFAULT_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    assert own_access().place is ACCOUNT
    (tmp_path / "credentials").write_text(
        f"[default]\naws_access_key_id = {access.access_key}\naws_secret_access_key = x\n"
    )
    assert own_access().place is REHEARSAL
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAIOSFODNN7EXAMPLE")
    assert own_access().place is ACCOUNT
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", access.access_key)
    assert own_access().place is REHEARSAL
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    assert own_access().place is ACCOUNT  # and the verb says that there is no such profile


@pytest.mark.parametrize(
    ("variables", "region"),
    [
        ({"AWS_REGION": "eu-west-1"}, "eu-west-1"),
        ({"AWS_DEFAULT_REGION": "eu-west-2"}, "eu-west-2"),
        ({"AWS_REGION": "eu-west-1", "AWS_DEFAULT_REGION": "eu-west-2"}, "eu-west-1"),
    ],
)
def test_the_region_is_that_of_aws_tools(monkeypatch, variables, region):
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    forget_sessions()
    try:
        assert Access().client("ec2").meta.region_name == region
        assert user_session().get_config_variable("region") == region
    finally:
        forget_sessions()
