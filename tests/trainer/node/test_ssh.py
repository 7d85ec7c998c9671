"""A node's keys: the run's and its host keys where the stack lets people attach, else none."""

from __future__ import annotations

import logging
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.node.test_report import status
from trainer.aws.place import ACCOUNT, REHEARSAL
from trainer.node import ssh
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
    return Node(work=tmp_path, place=ACCOUNT, uplink=Uplink(), status=status())  # type: ignore[arg-type]


def test_the_runs_key_is_authorized_and_host_keys_are_published(node: Node) -> None:
    ssh.open_ssh(node, KEY, etc=node.work / "etc")
    path = node.work / "home/.ssh/authorized_keys"
    assert path.read_text() == f"{ssh.OPTIONS} {KEY}\n" and ssh.OPTIONS.startswith("restrict,")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert node.uplink.sent == {node.status.identity.keys.host_keys: b"ssh-ed25519 AAAA root@ip-10-0-0-1\n"}  # type: ignore[attr-defined]


def test_without_a_key_nothing_is_done(node: Node) -> None:
    ssh.open_ssh(node, "", etc=node.work / "etc")
    assert not node.uplink.sent and not list((node.work / "home").iterdir())  # type: ignore[attr-defined]


def test_in_a_rehearsal_no_user_is_made(node: Node) -> None:
    node.place = REHEARSAL
    ssh.open_ssh(node, KEY, etc=node.work / "etc")
    assert not node.uplink.sent  # type: ignore[attr-defined]


@pytest.mark.parametrize("key", [KEY + "\nssh-ed25519 " + "B" * 68, "ssh-rsa AAAA", 'command="x" ' + KEY])
def test_a_key_of_another_kind_gets_nobody_in(node: Node, key: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        ssh.open_ssh(node, key, etc=node.work / "etc")
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
        ssh.open_ssh(node, KEY, etc=node.work / "etc")
    assert "nobody can attach" in caplog.text and not node.uplink.sent  # type: ignore[attr-defined]


def test_the_ssh_user_has_no_password_and_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert command[0] == "useradd" and "--password=*" in command
    assert not {"--groups", "-G", "sudo", "--system"} & set(command)
