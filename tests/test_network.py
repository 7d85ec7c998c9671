"""The guard itself: nothing that a test starts can reach beyond loopback, and it is told so at once."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.desk import Desk
from tests.network import HOOK, in_namespace
from trainer.rehearsal.instance import start_node

FAR = ("192.0.2.1", 80)  # TEST-NET-1 (RFC 5737): nobody's
TRY = "import socket; socket.socket(socket.AF_INET, socket.SOCK_STREAM).connect(('192.0.2.1', 80))"
needs_namespace = pytest.mark.skipif(not in_namespace(), reason="this kernel gives us no network namespace")


@pytest.mark.parametrize("host", ["192.0.2.1", "169.254.169.254"])
def test_this_process_reaches_nothing(host: str) -> None:
    with socket.socket() as probe, pytest.raises(PermissionError, match="beyond loopback"):
        probe.connect((host, 80))
    with socket.socket() as probe, pytest.raises(PermissionError, match="beyond loopback"):
        probe.connect_ex((host, 80))
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe,
        pytest.raises(PermissionError, match="beyond loopback"),
    ):
        probe.sendto(b"x", (host, 80))
    with socket.socket(socket.AF_INET6) as probe, pytest.raises(PermissionError, match="beyond loopback"):
        probe.connect(("2001:db8::1", 80))


@pytest.mark.parametrize("name", ["example.com", "192.0.2.1", "127.0.0.1.example.com"])
def test_no_name_is_looked_up(name: str) -> None:
    for look_up in (lambda: socket.getaddrinfo(name, 80), lambda: socket.gethostbyname(name)):
        with pytest.raises(PermissionError, match="beyond loopback"):
            look_up()


def test_loopback_and_unix_sockets_are_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        for host in ("127.0.0.1", "localhost"):
            socket.create_connection((host, server.getsockname()[1]), timeout=500).close()
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        monkeypatch.chdir(tmp_path)  # the path of a socket has 107 bytes
        server.bind("s")
        server.listen()
        client.connect("s")


def test_a_child_is_told_what_it_tried(tmp_path: Path) -> None:
    for environment in (dict(os.environ), Desk(folder=tmp_path, checkout=tmp_path, shared={}).environment()):
        child = subprocess.run(
            [sys.executable, "-c", TRY], env=environment, capture_output=True, text=True, check=False
        )
        assert child.returncode == 1 and "beyond loopback (socket.connect to '192.0.2.1')" in child.stderr


@needs_namespace
def test_a_child_without_site_or_environment_finds_no_network() -> None:
    for command in ([sys.executable, "-I", "-S", "-c", TRY], ["bash", "-c", "echo > /dev/tcp/192.0.2.1/80"]):
        child = subprocess.run(
            command, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=False
        )
        assert child.returncode == 1 and "unreachable" in child.stderr


@needs_namespace
def test_a_node_finds_no_network(tmp_path: Path, eventually: Callable[..., object]) -> None:
    script = b"#!/bin/bash\n(echo > /dev/tcp/192.0.2.1/80) 2>&1\n"
    node = start_node(
        sandbox=tmp_path, instance_id="i-1", instance_type="p3.8xlarge", user_data=script, environment={}
    )
    eventually(lambda: node.poll() != "running")
    node.terminate(grace_seconds=0)
    assert "unreachable" in (tmp_path / "var/log/cloud-init-output.log").read_text()


def test_ci_sets_up_first_then_tests_behind_the_guard() -> None:
    """CI runs `make test`; the guard is part of pytest, and scripts/check has set everything up before that
    begins.
    """
    root = HOOK.parents[1]
    assert "make test" in (root / ".ci/run").read_text()
    assert "tests.network" in (root / "tests/conftest.py").read_text()
    script = (root / "scripts/test").read_text()
    assert (
        script.index("scripts/check") < script.index("-m pytest")
        and "scripts/setup" in (root / "scripts/check").read_text()
    )
    assert os.environ["PYTHONPATH"].split(os.pathsep)[0] == str(HOOK)
