"""The EFS client: what it installs, and its tunnel between a real TLS server and real connections."""

from __future__ import annotations

import ast
import asyncio
import hashlib
import os
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.desk import until
from trainer.node import efs_client
from trainer.node.efs_client import COMMIT, FILES, NFS, SOURCE, install, is_roots, main, serve, settings_of

NAME = "fs-01.efs.us-east-1.amazonaws.com"
root = pytest.mark.skipif(os.geteuid() != 0, reason="only root's connections pass the tunnel")


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Files of amazon-efs-utils by URL, whose hashes are the pinned ones."""
    contents = {path: path.encode() for path in FILES}
    pinned = {path: (*FILES[path][:2], hashlib.sha256(contents[path]).hexdigest()) for path in FILES}
    monkeypatch.setattr(efs_client, "FILES", pinned)
    return {f"{SOURCE}/{COMMIT}/{path}": content for path, content in contents.items()}


def test_the_mount_helper_and_its_tools_are_installed(tmp_path: Path, files: dict[str, bytes]) -> None:
    install(tmp_path, files.__getitem__)
    helper = tmp_path / "sbin/mount.efs"
    assert helper.read_bytes() == b"src/mount_efs/__init__.py" and helper.stat().st_mode & 0o777 == 0o755
    assert {path.name for path in (tmp_path / "etc/amazon/efs").iterdir()} == {
        "efs-utils.conf",
        "efs-utils.crt",
    }
    assert (tmp_path / "var/log/amazon/efs").is_dir()
    assert (tmp_path / "sbin/mount.nfs4").read_text() == NFS
    # It is called as stunnel is: mount.efs first asks what it can do.
    told = subprocess.run(
        [tmp_path / "usr/local/sbin/stunnel", "-help"], capture_output=True, text=True, check=True
    )
    assert told.stderr.startswith("checkHost ")


@pytest.mark.parametrize(("refusals", "code"), [(0, 0), (2, 0), (9, 32)])
def test_nfs_is_mounted_once_the_tunnel_listens(tmp_path: Path, refusals: int, code: int) -> None:
    stubs = {
        "mount": f'echo "$*" >> calls; [ $(wc -l < calls) -gt {refusals} ]',
        "sleep": "echo waited >> waits",
    }
    for name, script in {**stubs, "mount.nfs4": NFS}.items():
        efs_client.write(
            tmp_path / name, (script if name not in stubs else f"#!/bin/sh\n{script}\n").encode(), 0o755
        )
    command = [tmp_path / "mount.nfs4", "127.0.0.1:/", "/cache", "-o", "soft,port=20049"]
    done = subprocess.run(command, env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, cwd=tmp_path, check=False)
    calls = (tmp_path / "calls").read_text().splitlines()
    assert done.returncode == code and len(calls) == min(refusals + 1, 5)
    assert set(calls) == {"-i -t nfs4 -o soft,port=20049,addr=127.0.0.1 127.0.0.1:/ /cache"}


def test_tools_of_the_image_are_left_alone(tmp_path: Path, files: dict[str, bytes]) -> None:
    for tool in ("stunnel", "mount.nfs4"):
        efs_client.write(tmp_path / "usr/sbin" / tool, b"the image's", 0o755)
    install(tmp_path, files.__getitem__)
    assert not (tmp_path / "usr/local/sbin/stunnel").exists() and not (tmp_path / "sbin/mount.nfs4").exists()


def test_a_file_with_another_hash_installs_nothing(tmp_path: Path, files: dict[str, bytes]) -> None:
    changed = {**files, f"{SOURCE}/{COMMIT}/dist/efs-utils.crt": b"another certificate"}
    with pytest.raises(
        ValueError, match=r"dist/efs-utils.crt of amazon-efs-utils e79f9c16 has sha256 .*, not "
    ):
        install(tmp_path, changed.__getitem__)
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_fetched_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def refused(*_: object) -> None:
        raise OSError("no route")

    monkeypatch.setattr(efs_client, "install", refused)
    assert main(["install"]) == 1
    assert capsys.readouterr().err == "mount.efs can't be installed: no route\n"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an authority, EFS's certificate, one with another name, and the client's own."""
    folder = tmp_path_factory.mktemp("certificates")
    new = ("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2")
    for name, subject in (("efs", NAME), ("other", "fs-02.efs.us-east-1.amazonaws.com"), ("client", "node")):
        places = ("-keyout", f"{folder}/{name}.key", "-out", f"{folder}/{name}.pem")
        words = ("-subj", f"/CN={subject}", "-addext", f"subjectAltName=DNS:{subject}")
        subprocess.run([*new, *places, *words], check=True, capture_output=True)
    return folder


Tunnel = Callable[..., int]


@pytest.fixture
def tunnel(certificates: Path, tmp_path: Path) -> Iterator[Tunnel]:
    """Return a function that starts an EFS, which repeats what it is sent, and a tunnel to it: -> its port."""
    stops = []

    def start(*, certificate: str = "efs", trusted: str = "efs", shown: str = "client") -> int:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates / f"{certificate}.pem", certificates / f"{certificate}.key")
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(certificates / "client.pem")
        ports, ready = list[int](), threading.Event()

        async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while block := await reader.read(1 << 16):
                writer.write(block)
                await writer.drain()
            writer.close()

        def listening(port: int) -> None:
            ports.append(port)
            ready.set()

        async def both() -> None:
            stops.append((asyncio.get_running_loop(), asyncio.current_task(), thread))
            efs = await asyncio.start_server(echo, "127.0.0.1", 0, ssl=context)
            configuration = tmp_path / "stunnel-config"
            configuration.write_text(
                f"fips = no\n[efs]\naccept = 127.0.0.1:0\nconnect = 127.0.0.1:{efs.sockets[0].getsockname()[1]}\n"
                f"CAfile = {certificates}/{trusted}.pem\ncheckHost = {NAME}\n"
                f"cert = {certificates}/{shown}.pem\nkey = {certificates}/{shown}.key\n"
            )
            with suppress(asyncio.CancelledError):
                await serve(settings_of(configuration), listening)

        thread = threading.Thread(target=lambda: asyncio.run(both()))
        thread.start()
        assert ready.wait(500)
        return ports[0]

    yield start
    for loop, task, thread in stops:
        loop.call_soon_threadsafe(task.cancel)
        thread.join()


def answer(port: int, sent: bytes) -> bytes:
    """Return what comes back through the tunnel; nothing if it closes the connection."""
    back = b""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=500) as near:
            near.sendall(sent)
            while len(back) < len(sent) and (block := near.recv(1 << 16)):
                back += block
    except ConnectionError:
        pass
    return back


@root
def test_bytes_pass_both_ways_for_several_connections(tunnel: Tunnel) -> None:
    port = tunnel()
    for size in (1, 5_000_000):
        sent = os.urandom(size)
        assert answer(port, sent) == sent


@root
@pytest.mark.parametrize(
    "wrong", [{"certificate": "other", "trusted": "other"}, {"trusted": "other"}, {"shown": "other"}]
)
def test_another_name_authority_or_client_gets_nothing_through(tunnel: Tunnel, wrong: dict[str, str]) -> None:
    assert answer(tunnel(**wrong), b"NFS") == b""


ASK = "import socket, sys; near = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); near.sendall(b'NFS')"
ASK += "\ntry: print(near.recv(3))\nexcept ConnectionError: print(b'')"


@root
def test_a_scripts_user_gets_nothing_through(tunnel: Tunnel) -> None:
    command = ["/usr/bin/python3", "-I", "-S", "-c", ASK, str(tunnel())]
    for user, back in ((0, "b'NFS'"), (65534, "b''")):
        asked = subprocess.run(command, user=user, capture_output=True, text=True, check=True, cwd="/")
        assert asked.stdout.strip() == back, asked.stderr


LEAVE = "import socket, sys; near = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); near.sendall(b'NFS')"
LEAVE += "\nprint(near.getsockname()[1])"


@root
def test_a_connection_that_its_user_closed_is_not_roots() -> None:
    """The kernel shows it with user 0, and what was sent could still be read."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        command = ["/usr/bin/python3", "-I", "-S", "-c", LEAVE, str(port)]
        left = subprocess.run(command, user=65534, capture_output=True, text=True, check=True, cwd="/")
        near = int(left.stdout)
        until(lambda: _shown(near)[3] not in ("01", "04"))  # its end was acknowledged
        assert not is_roots(near, port), _shown(near)


def _shown(port: int) -> list[str]:
    """Return the kernel's row of a connection from a local port."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return next((row for row in rows if row[1] == f"0100007F:{port:04X}"), [""] * 8)


@root
def test_a_port_is_roots_for_the_connection_that_is_meant() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as near,
        socket.create_server(("127.0.0.1", 0)) as other,
    ):
        port = near.getsockname()[1]
        assert is_roots(port, server.getsockname()[1])
        assert not is_roots(port, other.getsockname()[1])


def test_a_port_that_is_not_connected_is_nobodys() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        assert not is_roots(unused.getsockname()[1], 1)


def test_it_needs_no_newer_python_than_images_have() -> None:
    """The image's own Python runs it, which is 3.9 on Amazon Linux 2023."""
    ast.parse(Path(efs_client.__file__).read_text(), feature_version=(3, 9))
