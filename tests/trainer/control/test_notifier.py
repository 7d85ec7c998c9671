"""What the notifier posts, and that no error of its own gives the webhook's address away."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from trainer.control.notifier import MOST_CHARACTERS, post, text_of

SECRET = "T000-B000-XXXX"


@pytest.fixture
def webhook() -> Iterator[tuple[str, list[Any]]]:
    """A webhook on loopback: /ok takes what is posted, /moved sends elsewhere, anything else is not found."""
    posted: list[Any] = []

    class Webhook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.path == f"/ok/{SECRET}":
                posted.append(json.loads(body))
            status = 200 if posted else 302 if "moved" in self.path else 404
            self.send_response(status)
            self.send_header("Location", f"/ok/{SECRET}")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Webhook)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", posted
    server.shutdown()
    server.server_close()


def test_an_alarm_is_its_name_its_meaning_and_its_reason() -> None:
    alarm = {"AlarmName": "mayfly-dev-sweeper-silent", "AlarmDescription": "It has not run.", "NewStateValue": "ALARM"}
    message = json.dumps({**alarm, "NewStateReason": "Threshold Crossed"})
    assert text_of({"Subject": "ignored", "Message": message}).splitlines() == [
        "ALARM: mayfly-dev-sweeper-silent",
        "It has not run.",
        "Threshold Crossed",
    ]


@pytest.mark.parametrize(
    ("notification", "expected"),
    [
        ({"Subject": "a run failed", "Message": "three lines"}, "a run failed\nthree lines"),
        ({"Subject": None, "Message": "[1]"}, "[1]"),
        ({"Message": '{"other": "JSON"}'}, '{"other": "JSON"}'),
        ({"Message": "x" * 10_000}, "x" * MOST_CHARACTERS),
    ],
)
def test_anything_else_is_posted_as_it_was_sent(notification: dict[str, Any], expected: str) -> None:
    assert text_of(notification) == expected


def test_a_message_is_posted_in_slacks_shape(webhook: tuple[str, list[Any]]) -> None:
    url, posted = webhook
    post(f"{url}/ok/{SECRET}", "hello")
    assert posted == [{"text": "hello"}]


@pytest.mark.parametrize(
    ("address", "failure"),
    [
        ("{url}/gone/{secret}", "the webhook answered 404"),
        ("{url}/moved/{secret}", "the webhook answered 302"),
        ("http://127.0.0.1:1/{secret}", "can't be reached (URLError)"),
        ("https://{secret} with blanks/", "can't be reached (InvalidURL)"),
        ("http://elsewhere.example/{secret}", "does not begin with https://"),
        ("file:///{secret}", "does not begin with https://"),
    ],
)
def test_a_failure_is_an_error_without_the_address(webhook: tuple[str, list[Any]], address: str, failure: str) -> None:
    url, posted = webhook
    with pytest.raises(RuntimeError) as failed:
        post(address.format(url=url, secret=SECRET), "hello")
    assert failure in str(failed.value) and SECRET not in str(failed.value) and posted == []
    assert failed.value.__cause__ is None and failed.value.__context__ is None
