"""A webhook on loopback that records what is posted to it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@contextmanager
def webhook(answer: Callable[[str], tuple[int, str]], posted: list[Any]) -> Iterator[str]:
    """Yield its address. `answer` gives status and Location for a path; documents that got a 200 are added to
    `posted`. What is not sent as JSON gets a 415.
    """

    class Webhook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            document = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, location = answer(self.path)
            if self.headers["Content-Type"] != "application/json":  # as Slack: a form has no such document
                status = 415
            if status == 200:
                posted.append(document)
            self.send_response(status)
            self.send_header("Location", location)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Webhook)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
