"""What bootstrap.sh asks the metadata service and S3 for, and its clock."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests.trainer.node.test_bootstrap import HELPER


@pytest.mark.parametrize(("off", "is_set"), [(-3600, True), (3600, True), (30, False)])
def test_a_clock_that_is_off_is_set_by_s3s(off: int, is_set: bool) -> None:
    class S3(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:  # noqa: N802, the library's name
            self.send_response_only(403)  # unsigned
            self.send_header("Date", formatdate(time.time() - off, usegmt=True))
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), S3) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        done = look_at_clock(f"http://127.0.0.1:{server.server_port}")
    assert done.returncode == 0, done.stderr
    if not is_set:
        assert (done.stdout, done.stderr) == ("", "")
        return
    *_, at, apart = done.stdout.split()
    assert abs(float(at) - (time.time() - off)) < 300 and abs(int(apart) - off) < 5
    assert re.search(r"this machine.s clock was [+-]\d+ s off, and is set by S3.s", done.stderr)


def test_a_clock_is_left_alone_where_s3_does_not_answer() -> None:
    done = look_at_clock("http://127.0.0.1:1")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_metadata_service_that_does_not_answer_is_asked_again() -> None:
    asked: list[str] = []

    class Metadata(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:  # noqa: N802, the library's name
            asked.append("token")
            if len(asked) == 1:
                self.close_connection = True  # without a word
                return
            self._say(b"token")

        def do_GET(self) -> None:  # noqa: N802
            self._say(b"mayfly")

        def _say(self, body: bytes) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Metadata) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        known = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": f"http://127.0.0.1:{server.server_port}"}
        known |= {"AWS_REGION": "us-east-1", "MAYFLY_BUCKET": "b"}
        words = [sys.executable, "-I", "-c", HELPER, "tags", "project"]
        done = subprocess.run(words, env=known, capture_output=True, text=True, timeout=500)
        server.shutdown()
    assert (done.returncode, done.stdout) == (0, "project=mayfly\n"), done.stderr
    assert len(asked) == 2


@pytest.mark.parametrize("refusal", [403, 404, 503])
def test_a_bundle_that_s3_does_not_show_yet_is_asked_for_again(refusal: int, tmp_path: Path) -> None:
    """While versioning is new, S3 may miss an object that exists. A role that may not list sees a 403 then."""
    answers = iter([(refusal, b""), (200, b"code")])
    done = fetch(tmp_path / "bundle.zip", lambda: next(answers))
    assert (done.returncode, (tmp_path / "bundle.zip").read_bytes()) == (0, b"code"), done.stderr


def test_a_bundle_that_breaks_off_on_the_way_is_asked_for_again(tmp_path: Path) -> None:
    answers = iter([(200, b"co"), (200, b"code")])
    done = fetch(tmp_path / "bundle.zip", lambda: next(answers))
    assert (done.returncode, (tmp_path / "bundle.zip").read_bytes()) == (0, b"code"), done.stderr


def fetch(place: Path, answer: Callable[[], tuple[int, bytes]]) -> subprocess.CompletedProcess[str]:
    """Have the bootstrap fetch a bundle, whose bytes are `code`, from an S3 that answers so; a shorter answer
    breaks off.
    """

    class Aws(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:  # noqa: N802, the library's name
            self._say(200, b"token")

        def do_GET(self) -> None:  # noqa: N802
            if self.path == "/b/code/x":
                self._say(*answer(), length=4)
            else:
                keys = b'{"AccessKeyId": "A", "SecretAccessKey": "s", "Token": "t"}'
                self._say(200, keys if self.path.endswith("/role") else b"role")

        def _say(self, status: int, body: bytes, *, length: int | None = None) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(length or len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Aws) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        known = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": url, "AWS_ENDPOINT_URL": url}
        known |= {"AWS_REGION": "us-east-1", "MAYFLY_BUCKET": "b"}
        words = [sys.executable, "-I", "-c", HELPER, "get", "code/x", str(place)]
        words.append(hashlib.sha256(b"code").hexdigest())
        done = subprocess.run(words, env=known, capture_output=True, text=True, timeout=500)
        server.shutdown()
    return done


def look_at_clock(endpoint: str) -> subprocess.CompletedProcess[str]:
    """Run the bootstrap's look at its clock; this machine's stays as it is."""
    script = HELPER.replace("time.clock_settime(time.CLOCK_REALTIME, ", "print('set to', ")
    assert script != HELPER
    known = {"AWS_ENDPOINT_URL": endpoint, "AWS_REGION": "us-east-1", "MAYFLY_BUCKET": "b"}
    words = [sys.executable, "-I", "-c", script, "clock"]
    return subprocess.run(words, env=known, capture_output=True, text=True, timeout=500)
