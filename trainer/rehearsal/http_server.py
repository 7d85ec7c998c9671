"""The HTTP server of the embedded AWS: werkzeug's threaded one, whose connections carry one request after
another.

werkzeug closes each connection after its answer, because an application may leave a part of a body unread;
that costs a third more core time a request. Here the body is counted: a connection stays open only if its
request was read to the end.
"""

from __future__ import annotations

import logging
import socket
import threading
from contextlib import suppress
from http import HTTPStatus
from typing import Any

from moto.moto_server.werkzeug_app import MotoRequestHandler
from werkzeug.serving import ThreadedWSGIServer

from trainer.rehearsal.wire import Answer, Application, answer_of

log = logging.getLogger("trainer.rehearsal")
_DRAIN_SECONDS, _MOST_DRAINED_BLOCKS, _BLOCK_BYTES = 2.0, 10_000, 1 << 20
_NO_BODY = (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED)
_FAILED: Answer = (500, [("Content-Type", "text/plain")], b"Internal Server Error")


class HttpServer(ThreadedWSGIServer):
    """Serve a WSGI application on a free port of loopback. Closing it ends connections that wait for a
    request, too.
    """

    def __init__(self, application: Application) -> None:
        self._connections: set[Any] = set()
        super().__init__("127.0.0.1", 0, application, handler=_Handler)

    def serve_also(self, listener: socket.socket) -> None:
        """Serve the connections of another listening socket, too, until it is closed."""

        def accept() -> None:
            while True:
                try:
                    self.process_request(*listener.accept())
                except OSError:
                    return

        threading.Thread(target=accept, daemon=True).start()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread."""
        self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """End a connection."""
        self._connections.discard(request)
        super().shutdown_request(request)

    def server_close(self) -> None:
        """Accept no more connections, and no more requests on those that are open."""
        super().server_close()
        for connection in list(self._connections):
            with suppress(OSError):  # the client was faster
                connection.shutdown(socket.SHUT_RD)  # its thread wakes up, and closes it


class _Handler(MotoRequestHandler):
    protocol_version = "HTTP/1.1"
    # Else an answer waits 40 ms for an acknowledgement between its head and its body.
    disable_nagle_algorithm = True
    wbufsize = 1 << 16  # head and body of an answer are one write
    server: HttpServer

    def run_wsgi(self) -> None:
        """Answer the request that was parsed."""
        environ = self.environ = self.make_environ()
        length, body = self.headers.get("Content-Length", "0"), None
        if length.isdecimal() and "Transfer-Encoding" not in self.headers:
            body = environ["wsgi.input"] = _Body(self.rfile, int(length))
        try:
            answer = answer_of(self.server.app, environ)
        except ConnectionError:  # the client is gone
            raise
        except Exception:  # broad on purpose: a defect of an answer is a 500, as from a server of AWS
            log.exception("no answer to %s %s", self.command, self.path)
            answer = _FAILED
        was_read = body is not None and not body.left
        self._answer(answer, close=self.close_connection or not was_read)
        if not was_read:
            self._drain()

    def _answer(self, answer: Answer, *, close: bool) -> None:
        status, headers, body = answer
        self.send_response_only(status)  # without this machine's Date: the front adds the account's
        has_body = self.command != "HEAD" and status not in _NO_BODY
        for name, value in headers:
            if not has_body or name.lower() != "content-length":
                self.send_header(name, value)
        if has_body:
            self.send_header("Content-Length", str(len(body)))
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
        self.connection.settimeout(_DRAIN_SECONDS)
        with suppress(OSError):
            for _ in range(_MOST_DRAINED_BLOCKS):
                if not self.rfile.read1(_BLOCK_BYTES):
                    return

    def handle_expect_100(self) -> bool:
        """Ask for the body at once."""
        super().handle_expect_100()
        self.wfile.flush()
        return True

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Log no requests: there are too many."""

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
