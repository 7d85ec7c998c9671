"""Connections of the embedded AWS's server: which stay open for a next request, and that none outlives the
server.
"""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from trainer.aws.access import Access
from trainer.rehearsal.http_server import HttpServer
from trainer.rehearsal.server import EmbeddedAws

Connect = Callable[[], http.client.HTTPConnection]


def application(environ: dict[str, Any], start_response: Any) -> list[bytes]:
    """Answer as the path says; /echo reads the body and returns it."""
    path, length = environ["PATH_INFO"], environ.get("CONTENT_LENGTH") or 0
    if path == "/fails":
        raise ValueError("oh")
    headers = {"/short": [("Content-Length", "9")], "/head": [("Content-Length", "9")]}.get(path, [])
    chunked = environ.get("HTTP_TRANSFER_ENCODING") == "chunked"
    body = environ["wsgi.input"].read(*([] if chunked else [int(length)])) if path == "/echo" else b"abc"
    start_response({"/empty": "204 No Content"}.get(path, "200 OK"), headers)
    return [body]


@pytest.fixture
def served() -> Iterator[HttpServer]:
    server = HttpServer(application)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()


@pytest.fixture
def connect(served: HttpServer) -> Iterator[Connect]:
    """Return a function that opens a connection, which does not connect again by itself."""
    opened: list[http.client.HTTPConnection] = []

    def connect() -> http.client.HTTPConnection:
        opened.append(http.client.HTTPConnection("127.0.0.1", served.server_port, timeout=500))
        opened[-1].connect()
        opened[-1].auto_open = 0
        return opened[-1]

    yield connect
    for one in opened:
        one.close()


def ask(
    connection: http.client.HTTPConnection, method: str, path: str, body: Any = None, **headers: str
) -> tuple[int, bytes, str]:
    """Return an answer's status, its body, and what becomes of the connection."""
    chunked = "Transfer-Encoding" in headers
    connection.request(method, path, body=body, headers=headers, encode_chunked=chunked)
    answer = connection.getresponse()
    return answer.status, answer.read(), str(answer.headers["Connection"])


def test_one_connection_carries_one_request_after_another(connect: Connect) -> None:
    connection = connect()
    assert ask(connection, "PUT", "/echo", b"first") == (200, b"first", "keep-alive")
    assert ask(connection, "GET", "/echo") == (200, b"", "keep-alive")
    assert ask(connection, "HEAD", "/head") == (200, b"", "keep-alive")
    assert ask(connection, "DELETE", "/empty") == (204, b"", "keep-alive")
    assert ask(connection, "GET", "/fails") == (500, b"Internal Server Error", "keep-alive")
    assert ask(connection, "PUT", "/echo", b"x" * 1_000_000) == (200, b"x" * 1_000_000, "keep-alive")
    assert ask(connection, "GET", "/echo", Connection="close") == (200, b"", "close")


def test_an_unread_body_ends_the_connection_after_the_answer(
    connect: Connect,
) -> None:
    assert ask(connect(), "PUT", "/unread", b"GET /echo HTTP/1.1\r\n\r\n") == (200, b"abc", "close")
    assert ask(connect(), "PUT", "/unread", b"x" * 10_000_000) == (200, b"abc", "close")


def test_after_a_body_in_chunks_the_connection_ends(connect: Connect) -> None:
    chunked = {"Transfer-Encoding": "chunked"}
    assert ask(connect(), "PUT", "/echo", iter([b"one", b"two"]), **chunked) == (200, b"onetwo", "close")


def test_an_answer_is_as_long_as_its_body(connect: Connect) -> None:
    assert ask(connect(), "GET", "/short") == (200, b"abc", "keep-alive")


def test_an_expected_continue_is_sent_once(served: HttpServer) -> None:
    with (
        socket.create_connection(("127.0.0.1", served.server_port), timeout=500) as client,
        client.makefile("rb") as answers,
    ):
        for _ in range(2):
            head = b"PUT /echo HTTP/1.1\r\nHost: here\r\nContent-Length: 3\r\n"
            client.sendall(head + b"Expect: 100-continue\r\n\r\n")
            assert [answers.readline(), answers.readline()] == [b"HTTP/1.1 100 Continue\r\n", b"\r\n"]
            client.sendall(b"abc")
            assert answers.readline() == b"HTTP/1.1 200 OK\r\n"
            while answers.readline() != b"\r\n":
                pass
            assert answers.read(3) == b"abc"


def test_waiting_connections_end_with_the_server(served: HttpServer, connect: Connect) -> None:
    opened = [connect(), connect()]
    assert [ask(one, "GET", "/echo")[0] for one in opened] == [200, 200]
    served.shutdown()
    served.server_close()
    assert [one.sock.recv(1) for one in opened] == [b"", b""]


def test_a_client_of_boto3_needs_one_connection(
    aws_server: EmbeddedAws, access: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    accepted = []
    server, accept = aws_server._server, aws_server._server.process_request
    monkeypatch.setattr(server, "process_request", lambda *which: accepted.append(which) or accept(*which))
    s3 = access.client("s3")
    s3.create_bucket(Bucket="connected")
    s3.put_object(Bucket="connected", Key="large", Body=b"x" * 3_000_000)  # boto3 asks whether to send it
    s3.put_object(Bucket="connected", Key="empty", Body=b"")
    assert s3.head_object(Bucket="connected", Key="large")["ContentLength"] == 3_000_000
    assert s3.get_object(Bucket="connected", Key="large")["Body"].read() == b"x" * 3_000_000
    with pytest.raises(s3.exceptions.NoSuchKey):
        s3.get_object(Bucket="connected", Key="nothing")
    s3.delete_object(Bucket="connected", Key="empty")
    assert len(accepted) == 1


def test_a_length_that_is_no_number_ends_the_connection(connect: Connect) -> None:
    connection = connect()
    connection.putrequest("GET", "/abc")
    connection.putheader("Content-Length", b"\xb2")
    connection.endheaders()
    answer = connection.getresponse()
    assert (answer.status, answer.read(), answer.headers["Connection"]) == (200, b"abc", "close")
