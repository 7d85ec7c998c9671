"""What a node does where its stack lets people attach: the run's key, its host keys, its page of curves; else
nothing.
"""

from __future__ import annotations

import json
import logging
import stat
import subprocess
import urllib.error
import urllib.request
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.node.test_report import status
from tests.trainer.runs.test_training_events import EPOCH
from trainer.node import curves_page, ssh
from trainer.node.curves_page import page, page_handler, read_curves, serve_curves
from trainer.node.shared import Node

KEY = "ssh-ed25519 " + "A" * 68


class Uplink:
    def __init__(self) -> None:
        self.sent: dict[str, bytes] = {}

    def try_send(self, key: str, body: bytes) -> bool:
        self.sent[key] = body
        return True


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    (tmp_path / "home").mkdir()
    (tmp_path / "etc/ssh").mkdir(parents=True)
    (tmp_path / "etc/ssh/ssh_host_ed25519_key.pub").write_text("ssh-ed25519 AAAA root@ip-10-0-0-1")
    (tmp_path / "etc/ssh/ssh_host_ed25519_key").write_text("private")
    monkeypatch.setattr(ssh, "make_user", lambda: tmp_path / "home")
    return Node(work=tmp_path, rehearsal=False, uplink=Uplink(), status=status())  # type: ignore[arg-type]


def test_the_runs_key_gets_in_and_public_host_keys_go_under_the_nodes_own_id(node: Node) -> None:
    ssh.open_ssh(node, {"attach": {"mode": "ssh", "public_key": KEY}}, etc=node.work / "etc")
    path = node.work / "home/.ssh/authorized_keys"
    assert path.read_text() == f"{ssh.OPTIONS} {KEY}\n" and ssh.OPTIONS.startswith("restrict,")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert node.uplink.sent == {node.status.identity.keys.host_keys: b"ssh-ed25519 AAAA root@ip-10-0-0-1\n"}  # type: ignore[attr-defined]


@pytest.mark.parametrize("manifest", [{}, {"attach": None}, {"attach": {}}, {"attach": {"mode": "ssm"}}])
def test_without_a_key_nothing_is_done(node: Node, manifest: dict[str, Any]) -> None:
    ssh.open_ssh(node, manifest, etc=node.work / "etc")
    assert not node.uplink.sent and not list((node.work / "home").iterdir())  # type: ignore[attr-defined]


def test_in_a_rehearsal_no_user_is_made_and_nothing_served(node: Node) -> None:
    node.rehearsal = True
    manifest = {"attach": {"mode": "ssh", "public_key": KEY}}
    ssh.open_ssh(node, manifest, etc=node.work / "etc")
    assert not node.uplink.sent and serve_curves(node, manifest, port=0) == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "key", [KEY + "\nssh-ed25519 " + "B" * 68, "ssh-rsa AAAA", 'command="x" ' + KEY, 5, ["x"]]
)
def test_a_key_of_another_kind_gets_nobody_in(node: Node, key: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        ssh.open_ssh(node, {"attach": {"public_key": key}}, etc=node.work / "etc")
    assert "nobody can attach" in caplog.text and not list((node.work / "home").iterdir())


@pytest.mark.parametrize(
    "error", [FileNotFoundError("useradd"), subprocess.CalledProcessError(1, "useradd"), KeyError("mayfly")]
)
def test_a_machine_that_takes_no_user_trains_all_the_same(
    node: Node, error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> Path:
        raise error

    monkeypatch.setattr(ssh, "make_user", fail)
    with caplog.at_level(logging.WARNING):
        ssh.open_ssh(node, {"attach": {"public_key": KEY}}, etc=node.work / "etc")
    assert "nobody can attach" in caplog.text and not node.uplink.sent  # type: ignore[attr-defined]


def test_the_user_has_no_password_no_group_of_others_and_is_made_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import pwd

    made: list[tuple[str, ...]] = []

    def known(name: str) -> Any:
        if not made:
            raise KeyError(name)
        return pwd.struct_passwd((name, "x", 1001, 1001, "", "/home/mayfly", "/bin/bash"))

    monkeypatch.undo()
    monkeypatch.setattr(pwd, "getpwnam", known)
    monkeypatch.setattr(ssh.subprocess, "run", lambda command, **_: made.append(command))
    for _ in range(2):
        assert ssh.make_user() == Path("/home/mayfly")
    (command,) = made
    assert command[0] == "useradd" and "--password" in command and "*" in command
    assert not {"--groups", "-G", "sudo", "--system"} & set(command)


def events(folder: Path, *losses: float | None) -> None:
    (folder / "events").mkdir(exist_ok=True)
    lines = [
        json.dumps({**EPOCH, "epoch": number, "validation_loss": loss})
        for number, loss in enumerate(losses, 1)
    ]
    (folder / "events/events.jsonl").write_text("\n".join(["none of ours", *lines]) + "\n")


def fetch(port: int, path: str = "/", host: str = "") -> bytes:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers={"Host": host} if host else {})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=30) as answer:
        return bytes(answer.read())


def test_the_page_draws_the_curves_so_far_for_a_browser_of_this_machine(node: Node) -> None:
    port = serve_curves(node, {"attach": {"mode": "ssm"}}, port=0)
    assert b"no epoch has ended yet" in fetch(port)
    events(node.work, 0.7, None, 0.5)
    shown = fetch(port, host="localhost:6006").decode()
    assert "BTC-USD: epoch 3" in shown and "validation loss 0.5000" in shown and shown.count("<circle") == 5
    for path, host in (("/etc/passwd", ""), ("/", "evil.example"), ("/", "evil.example:6006")):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            fetch(port, path, host)
    assert serve_curves(node, {}, port=0) == 0


def test_a_name_of_a_piece_is_text_on_the_page(tmp_path: Path) -> None:
    assert read_curves(tmp_path / "none") == {}
    epoch = {"train_loss": 0.5, "validation_loss": 0.5}
    assert "<script>" not in page("<script>", {"<script>": {1: epoch}})


def test_a_port_that_is_taken_costs_the_page_alone(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    taken = ThreadingHTTPServer(("127.0.0.1", 0), page_handler("x", node.work))
    with caplog.at_level(logging.WARNING):
        assert serve_curves(node, {"attach": {"mode": "ssm"}}, port=taken.server_port) == 0
    assert "are not served" in caplog.text
    taken.server_close()


def test_an_image_that_has_tensorboard_serves_that(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    package = node.work / "lib" / "tensorboard"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "main.py").write_text("import json, sys; open('asked', 'w').write(json.dumps(sys.argv[1:]))\n")
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    children: list[Any] = []
    popen = subprocess.Popen
    monkeypatch.setattr(
        curves_page.subprocess, "Popen", lambda *words, **more: children.append(popen(*words, **more))
    )
    assert serve_curves(node, {"attach": {"mode": "ssm"}}) == 6006
    assert children[0].wait() == 0
    boards = str(node.work / "models/observed/tensorboard")
    assert json.loads((node.work / "asked").read_text()) == [
        "--logdir",
        boards,
        "--host",
        "127.0.0.1",
        "--port",
        "6006",
    ]
