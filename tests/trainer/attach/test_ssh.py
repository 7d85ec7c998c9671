"""SSH to a node: the same tests against paramiko's server side and, where it is installed, OpenSSH, on
loopback.
"""

from __future__ import annotations

import fcntl
import io
import os
import pty
import signal
import struct
import subprocess
import termios
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.sshd import SERVERS, SSHD, SshServer, key_pair, paramiko_server
from trainer.attach import by_ssh
from trainer.attach.by_ssh import carry_ports
from trainer.attach.forwarding import ForwardedPort
from trainer.attach.host_keys import parse_host_keys
from trainer.attach.request import AttachRequest, Forward
from trainer.attach.shell import run_command, run_shell
from trainer.attach.ssh import connection
from trainer.base.errors import ConnectionFailed, PermissionDenied, UsageError

Connect = Callable[..., Any]


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("key") / "run"
    key_pair(path)
    return path


@pytest.fixture(scope="module", params=SERVERS)
def server(
    request: pytest.FixtureRequest, key: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SshServer]:
    if request.param == "openssh" and SSHD is None:
        pytest.skip("OpenSSH's server is not installed")
    public = key.with_suffix(".pub").read_text().strip()
    with SERVERS[request.param](tmp_path_factory.mktemp("sshd"), public) as running:
        try:
            with connect(running, key):
                pass
        except PermissionDenied:
            if not running.refuses_this_account:
                raise
            pytest.skip("OpenSSH lets nobody in as this user")
        yield running


def connect(server: SshServer, key: Path, *, published: bytes | None = None) -> Any:
    pinned = parse_host_keys(server.published if published is None else published)
    return connection("127.0.0.1", pinned=pinned, key_file=key, user=server.user, port=server.port)


def run(transport: Any, line: str, typed: bytes = b"") -> tuple[int, bytes, bytes]:
    read, write = os.pipe()
    os.write(write, typed)
    os.close(write)
    out, err = io.BytesIO(), io.BytesIO()
    try:
        code = run_command(transport, line, stdin=read, stdout=out, stderr=err)
        return code, out.getvalue(), err.getvalue()
    finally:
        os.close(read)


def test_a_command_has_its_streams_and_its_exit_code(server: SshServer, key: Path) -> None:
    with connect(server, key) as transport:
        ended = run(transport, "cat; echo no >&2; exit 7", b"what was typed")
        assert ended == (7, b"what was typed", b"no\n")
        assert run(transport, "head -c 300000 /dev/zero | tr '\\0' x")[1] == b"x" * 300_000


def test_a_command_that_a_signal_ended_has_no_exit_code(server: SshServer, key: Path) -> None:
    with connect(server, key) as transport:
        with pytest.raises(ConnectionFailed, match="ended without an exit code.*a signal ended it, or"):
            run(transport, "kill -KILL $$")
        assert run(transport, "exit 3")[0] == 3, "the connection is as it was"


def test_another_host_key_is_refused_before_anything_is_sent(
    server: SshServer, key: Path, tmp_path: Path
) -> None:
    other = key_pair(tmp_path / "other").encode()
    tried = len(server.asked)
    line = r"is not the run's \(its host key SHA256:\S+ is none of those"
    with pytest.raises(ConnectionFailed, match=line) as refused, connect(server, key, published=other):
        pass
    assert "\n" not in str(refused.value) and "Nothing was sent to it" in str(refused.value)
    assert len(server.asked) == tried  # no name, no signature


def test_a_machine_without_a_published_kind_of_key_is_refused(
    server: SshServer, key: Path, tmp_path: Path
) -> None:
    make = ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", str(tmp_path / "ecdsa")]
    subprocess.run(make, check=True)
    with (
        # Who finds out first that there is none ends the connection: the machine may, before this side has
        # read what it offers.
        pytest.raises(ConnectionFailed, match="no host key of the kinds|does not speak SSH"),
        connect(server, key, published=(tmp_path / "ecdsa.pub").read_bytes()),
    ):
        raise AssertionError("it was let in")


def test_another_key_does_not_get_in(server: SshServer, tmp_path: Path) -> None:
    key_pair(tmp_path / "other")
    with pytest.raises(PermissionDenied, match="refuses the run's key"), connect(server, tmp_path / "other"):
        pass


def test_a_page_is_fetched_through_a_forwarded_port(server: SshServer, key: Path, tmp_path: Path) -> None:
    (tmp_path / "page").write_text("run-1")
    web = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=tmp_path))
    threading.Thread(target=web.serve_forever, args=(0.05,), daemon=True).start()
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with (
        connect(server, key) as transport,
        ForwardedPort(transport, Forward(local=0, remote=web.server_port)) as forwarded,
    ):
        for _ in range(2):
            with opener.open(f"http://127.0.0.1:{forwarded.port}/page", timeout=500) as answer:
                assert answer.read() == b"run-1"
        with pytest.raises(UsageError, match=f"port {forwarded.port} can't be listened on"):
            ForwardedPort(transport, Forward(local=forwarded.port, remote=1))
    with pytest.raises(OSError):  # it ends with the connection
        opener.open(f"http://127.0.0.1:{forwarded.port}/", timeout=500)
    web.shutdown()
    web.server_close()


def test_a_port_where_nothing_listens_is_closed(server: SshServer, key: Path) -> None:
    with connect(server, key) as transport, ForwardedPort(transport, Forward(local=0, remote=1)) as forwarded:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with pytest.raises(OSError):
            opener.open(f"http://127.0.0.1:{forwarded.port}/", timeout=500)
        assert run(transport, "echo still here")[1] == b"still here\n"


def resize(terminal: int, rows: int, columns: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def test_a_shells_terminal_follows_the_size_of_this_one(server: SshServer, key: Path) -> None:
    ours, terminal = pty.openpty()
    resize(terminal, 31, 97)
    before = termios.tcgetattr(terminal)
    shown = bytearray()

    def until(text: bytes) -> None:
        while text not in shown:
            shown.extend(os.read(ours, 4096))

    def type_on_it() -> None:
        os.write(ours, b"stty size; echo first-$((6*7))\n")
        until(b"first-42")
        resize(terminal, 20, 50)
        os.kill(os.getpid(), signal.SIGWINCH)
        follow = b"until stty size | grep -q '20 50'; do sleep 0.05; done"
        os.write(ours, follow + b"; echo second-$((6*7)); exit 3\n")
        until(b"second-42")
        with suppress(OSError):
            while True:
                shown.extend(os.read(ours, 4096))

    typist = threading.Thread(target=type_on_it, daemon=True)
    typist.start()
    with connect(server, key) as transport:
        assert run_shell(transport, "", keyboard=terminal, screen=terminal) == 3
    assert b"31 97" in shown and termios.tcgetattr(terminal) == before
    os.close(terminal)
    os.close(ours)


def test_a_silent_host_is_one_line() -> None:
    with (
        pytest.raises(ConnectionFailed, match=r"127.0.0.1 does not answer at port 1 .*setting attach is"),
        connection("127.0.0.1", pinned=(), key_file=Path("none"), port=1),
    ):
        pass


def test_ports_are_forwarded_until_ctrl_c(key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    announced: list[Forward] = []
    request = AttachRequest(line="", forwards=(Forward(local=0, remote=9),), announce=announced.append)

    class InterruptedEvent:
        def wait(self, _: float) -> None:
            raise KeyboardInterrupt

    with paramiko_server(tmp_path, key.with_suffix(".pub").read_text().strip()) as server:
        with monkeypatch.context() as patched, connect(server, key) as transport:
            patched.setattr(by_ssh, "Event", InterruptedEvent)
            assert carry_ports(transport, request) == 0
        with connect(server, key) as transport:
            transport.close()
            with pytest.raises(ConnectionFailed, match="has ended"):
                carry_ports(transport, request)
    assert len(announced) == 2
