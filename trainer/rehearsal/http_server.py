"""The HTTP server of the embedded AWS: a thread per connection, which answers one request after another.

werkzeug's own handler closes each connection after its answer, because an application may leave a part of a
body unread. Here the body is counted: a connection stays open only if its request was read to the end, and
its answer was as long as it said.
"""

from __future__ import annotations

import logging
import selectors
import socket
import threading
from contextlib import suppress
from http import HTTPStatus
from typing import Any

from moto.moto_server.werkzeug_app import MotoRequestHandler
from werkzeug.serving import ThreadedWSGIServer

from trainer.rehearsal.wire import Application

log = logging.getLogger("trainer.rehearsal")
_DRAIN_SECONDS, _MOST_DRAINED_BYTES = 0.01, 10 << 30
_NO_BODY = (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED)


class HttpServer(ThreadedWSGIServer):
    """Serve a WSGI application on a free port of loopback. Closing it ends connections without a request,
    too.
    """

    def __init__(self, application: Application) -> None:
        self._idle: set[socket.socket] = set()
        self._idle_lock = threading.Lock()
        self._closed = False
        super().__init__("127.0.0.1", 0, application, handler=_Handler)

    def server_close(self) -> None:
        """Accept no more connections, and end those that wait for a request."""
        super().server_close()
        with self._idle_lock:
            self._closed = True
            for connection in self._idle:
                with suppress(OSError):  # the client was faster
                    connection.shutdown(socket.SHUT_RDWR)  # its thread wakes up, and closes it

    def has_request(self, handler: _Handler) -> bool:
        """Wait for the first byte of a connection's next request; return False at the end of connection or
        server.
        """
        with self._idle_lock:
            if self._closed:
                return False
            self._idle.add(handler.connection)
        try:
            return bool(handler.rfile.peek(1))  # type: ignore[attr-defined]  # a BufferedReader
        finally:
            with self._idle_lock:
                self._idle.discard(handler.connection)


class _Handler(MotoRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = (
        True  # else an answer waits 40 ms for an acknowledgement between its head and its body
    )
    wbufsize = 1 << 16  # head and body of an answer are one write
    server: HttpServer

    def handle_one_request(self) -> None:
        """Wait for a request and answer it."""
        self.close_connection = True
        if self.server.has_request(self):
            super().handle_one_request()

    def run_wsgi(self) -> None:
        """Answer the request that was parsed."""
        environ = self.environ = self.make_environ()
        length = self.headers.get("Content-Length", "0")
        body = None
        if length.isdecimal() and "Transfer-Encoding" not in self.headers:
            body = environ["wsgi.input"] = _Body(self.rfile, int(length))
        started: list[tuple[str, list[tuple[str, str]]]] = []

        def start_response(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
            started.append((status, headers))

        try:
            content = self.server.app(environ, start_response)
            block = b"".join(content)
            if hasattr(content, "close"):
                content.close()
            status, headers = started[-1]
        except ConnectionError:  # the client is gone
            raise
        except (
            Exception
        ):  # broad on purpose: a defect of an answer is a 500, as from a server of AWS, and goes to the log
            log.exception("no answer to %s %s", self.command, self.path)
            status, headers, block = (
                "500 Internal Server Error",
                [("Content-Type", "text/plain")],
                b"Internal Server Error",
            )
        was_read = body is not None and not body.left
        self._answer(status, headers, block, close=self.close_connection or not was_read)
        if not was_read:
            self._drain()

    def _answer(self, status: str, headers: list[tuple[str, str]], body: bytes, *, close: bool) -> None:
        code, _, reason = status.partition(" ")
        self.send_response_only(int(code), reason)
        named = {name.lower(): value for name, value in headers}
        for name, value in headers:
            self.send_header(name, value)
        has_body = self.command != "HEAD" and int(code) not in _NO_BODY
        if has_body and "content-length" not in named:
            self.send_header("Content-Length", str(len(body)))
        elif has_body and named["content-length"] != str(len(body)):
            close = True  # the client would take what follows for the rest
        self.send_header("Connection", "close" if close else "keep-alive")
        self.end_headers()
        if has_body:
            self.wfile.write(body)
        self.wfile.flush()
        self.close_connection = close

    def _drain(self) -> None:
        """Read what the client still sends: closed before that, it would see a reset instead of the
        answer.
        """
        drained = 0
        with selectors.DefaultSelector() as selector:
            selector.register(self.connection, selectors.EVENT_READ)
            while drained < _MOST_DRAINED_BYTES and selector.select(_DRAIN_SECONDS):
                block = self.rfile.read1(1 << 20)
                if not block:
                    return
                drained += len(block)

    def send_response(self, code: int, message: str | None = None) -> None:
        """Begin an answer without this machine's Date: the front adds the account's."""
        self.send_response_only(code, message)

    def handle_expect_100(self) -> bool:
        """Ask for the body at once."""
        super().handle_expect_100()
        self.wfile.flush()
        return True

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Log no requests: there are too many, and the front has a list."""

    def log(self, type: str, message: str, *args: Any) -> None:
        if type == "error":
            log.error(message.rstrip(), *args)


class _Body:
    """The body of a request, as long as its head says."""

    def __init__(self, stream: Any, length: int) -> None:
        self._stream, self.left = stream, length

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes; fewer than wanted at the end of the body."""
        block: bytes = self._stream.read(self.left if size < 0 else min(size, self.left))
        self.left -= len(block)
        return block
