"""The folder of an embedded AWS: private, and believed only where nobody else could have written it."""

from __future__ import annotations

import errno
import json
import os
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from trainer.base.errors import ConfigError
from trainer.rehearsal.client import stop_server
from trainer.rehearsal.home import NOTE, Note, check_version, open_home, read_note, write_note

KNOWN = Note(url="http://127.0.0.1:4566", pid=1, started="1", secret=bytes(32))


def test_a_new_folder_is_its_users_alone(tmp_path: Path) -> None:
    root = open_home(tmp_path / "a" / "b")
    assert root.stat().st_mode & 0o777 == 0o700
    root.chmod(0o755)
    assert open_home(root).stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702, 0o1777])
def test_a_folder_where_others_may_write_is_refused(tmp_path: Path, mode: int) -> None:
    root = tmp_path / "shared"
    root.mkdir()
    root.chmod(mode)
    with pytest.raises(ConfigError, match="other users may write there.*MAYFLY_HOME"):
        open_home(root)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "theirs"
    root.mkdir(mode=0o700)
    os.chown(root, 65534, 65534)
    with pytest.raises(ConfigError, match="belongs to the user 65534"):
        open_home(root)


@pytest.mark.parametrize(
    "name", ["s3", "server.lock", "server.log", "sandbox", "s3/000000000001", "s3/000000000001/bucket"]
)
def test_a_folder_that_leads_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
    elsewhere.mkdir()
    link = root / name
    link.parent.mkdir(parents=True)
    root.chmod(0o700)
    link.symlink_to(elsewhere)
    with pytest.raises(ConfigError, match=f"{name} is a symbolic link"):
        open_home(root)


def test_a_file_in_the_folders_place_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for root in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ConfigError, match="has no folder"):
            open_home(root)


def test_a_note_is_read_back_and_is_private(tmp_path: Path) -> None:
    write_note(tmp_path, KNOWN)
    write_note(tmp_path, KNOWN)
    assert (tmp_path / NOTE).stat().st_mode & 0o777 == 0o600
    assert read_note(tmp_path) == KNOWN


@pytest.mark.parametrize(
    "changed",
    [
        {"url": "http://example.org:80"},
        {"url": "http://127.0.0.1:80@example.org"},
        {"url": "http://127.0.0.1:80/path"},
        {"url": "file:///etc/passwd"},
        {"url": 5},
        {"secret": "00"},
        {"secret": None},
        {"pid": "1"},
        {"started": 1},
    ],
    ids=str,
)
def test_a_note_that_leads_elsewhere_is_not_believed(tmp_path: Path, changed: dict[str, object]) -> None:
    write_note(tmp_path, KNOWN)
    told = json.loads((tmp_path / NOTE).read_text())
    (tmp_path / NOTE).write_text(json.dumps({**told, **changed}))
    assert read_note(tmp_path) is None


def test_a_note_that_others_may_read_is_not_believed(tmp_path: Path) -> None:
    write_note(tmp_path, KNOWN)
    (tmp_path / NOTE).chmod(0o644)
    assert read_note(tmp_path) is None
    (tmp_path / NOTE).chmod(0o600)
    (tmp_path / NOTE).rename(tmp_path / "elsewhere")
    (tmp_path / NOTE).symlink_to(tmp_path / "elsewhere")
    assert read_note(tmp_path) is None


@pytest.mark.parametrize("text", ["", "[]", "{", "null", '{"url": "http://127.0.0.1:1"}', "x" * 10_000])
def test_a_damaged_note_is_no_note(tmp_path: Path, text: str) -> None:
    (tmp_path / NOTE).touch(mode=0o600)
    (tmp_path / NOTE).write_text(text)
    assert read_note(tmp_path) is None


def test_a_server_without_the_secret_is_not_believed(tmp_path: Path) -> None:
    """A note whose server has gone, and a stranger who listens at its port and says yes to everything."""
    heard: list[str] = []

    class Stranger(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            heard.append(str(self.headers))
            body = json.dumps({"lease": "yes", "stopped": True}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Stranger)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    secret = os.urandom(32)
    url = f"http://127.0.0.1:{server.server_port}"
    write_note(tmp_path, Note(url=url, pid=os.getpid(), started="1", secret=secret))
    assert not stop_server(tmp_path)
    server.shutdown()
    server.server_close()
    assert heard and secret.hex() not in heard[0]


def test_a_new_folder_on_a_full_disk_works_once_there_is_room(tmp_path: Path) -> None:
    def full(path: Path, *_: object, **__: object) -> None:
        path.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.MonkeyPatch.context() as patch, pytest.raises(OSError, match="No space left"):
        patch.setattr(Path, "write_text", full)
        check_version(tmp_path)
    check_version(tmp_path)
    check_version(tmp_path)
