"""Instances that really run: processes of this machine behind EC2's states."""

from __future__ import annotations

import socket
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.processes import alive
from trainer.rehearsal.node_network import _lead_out, open_network
from trainer.rehearsal.nodes import sandbox
from trainer.rehearsal.server import EmbeddedAws

SLEEPER = b"#!/bin/sh\necho $$ > $MAYFLY_ROOT/pid\n(sleep 600 & echo $! > $MAYFLY_ROOT/child)\nsleep 600\n"


Launch = Callable[..., tuple[Any, str, Path]]


@pytest.fixture
def launch(aws_server: EmbeddedAws, make_desk: Callable[..., Any]) -> Launch:
    """Return a function that launches an instance whose user data runs: -> (desk, instance id, its
    sandbox).
    """

    def start(
        user_data: bytes, *, behavior: str = "terminate", kind: str = "p3.8xlarge", count: int = 1
    ) -> tuple[Any, str, Path]:
        access = aws_server.account()
        cloud = aws_server.cloud(access)
        cloud.run_nodes = True
        desk = make_desk(access, user_data=user_data, behavior=behavior)
        tags = {"run_id": "r1", "deadline": "2030-01-01T00:00:00Z"}
        instance_id = desk.launched(types=(kind,), tags=tags, count=count)
        return desk, instance_id, sandbox(cloud, instance_id)

    return start


def content(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def test_user_data_runs_and_poweroff_terminates(launch: Launch, wait_until: Callable[..., None]) -> None:
    desk, instance_id, _ = launch(b"#!/bin/sh\nsleep 0.2\npoweroff\nsleep 600\n")
    wait_until(lambda: desk.state(instance_id) == "terminated")
    assert desk.instance(instance_id)["StateReason"]["Code"] == "Client.InstanceInitiatedShutdown"


def test_poweroff_stops_an_instance_by_default(launch: Launch, wait_until: Callable[..., None]) -> None:
    desk, instance_id, _ = launch(b"#!/bin/sh\npoweroff\n", behavior="stop")
    wait_until(lambda: desk.state(instance_id) == "stopped")


def test_user_data_that_just_ends_leaves_the_instance_running(
    launch: Launch, wait_until: Callable[..., None]
) -> None:
    desk, instance_id, home = launch(b"#!/bin/sh\nexit 3\n")
    wait_until(lambda: (home / "run/user-data-exit").exists())
    assert desk.state(instance_id) == "running"
    desk.ec2.terminate_instances(InstanceIds=[instance_id])
    wait_until(lambda: desk.state(instance_id) == "terminated")


def test_termination_ends_every_process_of_the_node(launch: Launch, wait_until: Callable[..., None]) -> None:
    desk, instance_id, home = launch(SLEEPER)
    wait_until(lambda: content(home / "child").strip() != "")
    pids = [int(content(home / name)) for name in ("pid", "child")]
    assert all(alive(pid) for pid in pids)
    desk.ec2.terminate_instances(InstanceIds=[instance_id])
    wait_until(lambda: desk.state(instance_id) == "terminated")
    assert not any(alive(pid) for pid in pids)


# Listens on every address of its machine, and calls its AWS.
LISTENER = """
import os, pathlib, socket, urllib.request
names = " ".join(name for _, name in socket.if_nameindex())
listener = socket.create_server(("0.0.0.0", 0))
try:
    urllib.request.urlopen(os.environ["AWS_EC2_METADATA_SERVICE_ENDPOINT"] + "/latest/meta-data", timeout=500)
except urllib.error.HTTPError as refused:
    heard = refused.code
folder = pathlib.Path(os.environ["MAYFLY_ROOT"])
(folder / "new").write_text(f"{listener.getsockname()[1]} {heard} {os.environ.get('HTTPS_PROXY', '')} {names}")
(folder / "new").rename(folder / "heard")
listener.accept()
"""


def namespaces() -> bool:
    """Return whether this kernel gives us a network namespace."""
    (network := open_network(1)) and network.close()
    return network is not None


@pytest.mark.parametrize("count", [1, 2])
def test_machines_of_one_call_have_a_network_of_their_own(
    launch: Launch, wait_until: Callable[..., None], tmp_path: Path, count: int
) -> None:
    if not namespaces():
        pytest.skip("this kernel gives us no network namespace")
    (tmp_path / "listener.py").write_text(LISTENER)
    script = f"#!/bin/sh\nexec {sys.executable} -I {tmp_path}/listener.py\n".encode()
    desk, instance_id, home = launch(script, count=count)
    wait_until(lambda: (home / "heard").exists())
    port, heard, *proxy, name = content(home / "heard").split()
    assert heard == "401" and len(proxy) == (count > 1)
    with socket.socket() as stranger:  # of this machine's network
        reached = stranger.connect_ex(("127.0.0.1", int(port))) == 0
    assert reached == (count == 1)
    if count > 1:
        assert name == "lo"
    desk.ec2.terminate_instances(InstanceIds=[instance_id])
    wait_until(lambda: desk.state(instance_id) == "terminated")


def test_only_https_leads_out_of_an_node_network(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    asked: list[tuple[str, int]] = []
    monkeypatch.setattr(socket, "create_connection", lambda place, timeout: asked.append(place) or theirs)

    def answer(head: bytes) -> tuple[bytes, socket.socket, threading.Thread]:
        near, far = socket.socketpair()
        thread = threading.Thread(target=_lead_out, args=(far,))
        thread.start()
        near.sendall(head)
        return near.recv(1000), near, thread

    said, near, thread = answer(b"CONNECT 127.0.0.1:22 HTTP/1.1\r\n\r\n")
    thread.join()
    assert said.startswith(b"HTTP/1.1 405") and not asked
    near.close()
    said, near, thread = answer(b"CONNECT pypi.org:443 HTTP/1.1\r\nHost: pypi.org\r\n\r\n")
    assert said.startswith(b"HTTP/1.1 200") and asked == [("pypi.org", 443)]
    near.sendall(b"hello")
    assert ours.recv(100) == b"hello"
    ours.sendall(b"and back")
    assert near.recv(100) == b"and back"
    near.close()
    thread.join()
    ours.close()


def test_an_instance_shuts_down_until_its_processes_end(
    launch: Launch, wait_until: Callable[..., None]
) -> None:
    save = b"until [ -e $MAYFLY_ROOT/go ]; do sleep 0.05; done; echo saved > $MAYFLY_ROOT/saved; exit"
    wait = b"touch $MAYFLY_ROOT/ready\nwhile true; do sleep 0.05; done\n"
    desk, instance_id, home = launch(b"#!/bin/sh\ntrap '" + save + b"' TERM\n" + wait)
    wait_until(lambda: (home / "ready").exists())
    desk.ec2.terminate_instances(InstanceIds=[instance_id])
    assert desk.state(instance_id) == "shutting-down"
    (home / "go").touch()
    wait_until(lambda: desk.state(instance_id) == "terminated")
    assert content(home / "saved") == "saved\n"


def test_a_node_knows_its_gpus_and_nothing_of_the_desk(
    launch: Launch,
    wait_until: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DESK_SECRET", "hush")
    script = b"#!/bin/sh\nenv > $MAYFLY_ROOT/env.tmp\nmv $MAYFLY_ROOT/env.tmp $MAYFLY_ROOT/env\n"
    desk, instance_id, home = launch(script)
    wait_until(lambda: (home / "env").exists())
    environment = dict(line.split("=", 1) for line in content(home / "env").splitlines())
    assert "DESK_SECRET" not in environment
    assert environment["MAYFLY_REHEARSAL_GPUS"] == "4"
    assert environment["AWS_ENDPOINT_URL"] == desk.access.endpoint_url
    metadata = environment["AWS_EC2_METADATA_SERVICE_ENDPOINT"]
    assert metadata.startswith(f"{desk.access.endpoint_url}/imds/{instance_id}/")
    desk.ec2.terminate_instances(InstanceIds=[instance_id])
    wait_until(lambda: desk.state(instance_id) == "terminated")


def test_metadata_names_an_instance_and_lends_it_its_role(aws_server: EmbeddedAws, desk: Any) -> None:
    instance_id = desk.launched(tags={"run_id": "r7"})
    base = f"{aws_server.nodes.metadata_url(aws_server.cloud(desk.access), instance_id)}/latest"

    def get(path: str, token: str = "") -> str:
        request = urllib.request.Request(f"{base}/{path}", headers={"X-aws-ec2-metadata-token": token})
        with urllib.request.urlopen(request, timeout=500) as answer:
            return str(answer.read().decode())

    with pytest.raises(urllib.error.HTTPError, match="401"):
        get("meta-data/instance-id")
    lifetime = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
    asked = urllib.request.Request(f"{base}/api/token", method="PUT", headers=lifetime)
    with urllib.request.urlopen(asked, timeout=500) as answer:
        token = answer.read().decode()
    assert get("meta-data/instance-id", token) == instance_id
    assert get("meta-data/tags/instance/run_id", token) == "r7"
    assert get("meta-data/iam/security-credentials/", token) == "node"
    assert desk.access.access_key[4:16] in get("meta-data/iam/security-credentials/node", token)


def test_metadata_answers_for_living_instances_alone(aws_server: EmbeddedAws, desk: Any) -> None:
    instance_id = desk.launched()
    desk.ec2.terminate_instances(InstanceIds=[instance_id])
    cloud = aws_server.cloud(desk.access)
    for one in (instance_id, "i-unknown"):
        url = f"{aws_server.nodes.metadata_url(cloud, one)}/latest/meta-data/instance-id"
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(url, timeout=500)


def test_the_clock_does_not_jump_while_a_node_runs(
    aws_server: EmbeddedAws, launch: Launch, wait_until: Callable[..., None]
) -> None:
    desk, instance_id, home = launch(SLEEPER)
    wait_until(lambda: (home / "pid").exists())
    with pytest.raises(RuntimeError, match="real time"):
        aws_server.cloud(desk.access).advance(60)
    desk.ec2.terminate_instances(InstanceIds=[instance_id])
    wait_until(lambda: desk.state(instance_id) == "terminated")
    aws_server.cloud(desk.access).advance(60)
