"""A node's keys: the run's and its host keys where the stack lets people attach, else none."""

from __future__ import annotations

import logging
import stat
import subprocess
from pathlib import Path
from typing import Any, cast

import pytest

from tests.nodes import MemoryUplink
from tests.trainer.node.test_report import status
from trainer.aws.place import ACCOUNT, REHEARSAL
from trainer.node import ssh, uplink
from trainer.node.shared import Node

KEY = "ssh-ed25519 " + "A" * 68


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    (tmp_path / "home").mkdir()
    (tmp_path / "etc/ssh").mkdir(parents=True)
    (tmp_path / "etc/ssh/ssh_host_ed25519_key.pub").write_text("ssh-ed25519 AAAA root@ip-10-0-0-1")
    (tmp_path / "etc/ssh/ssh_host_ed25519_key").write_text("private")
    monkeypatch.setattr(ssh, "make_user", lambda: tmp_path / "home")
    return Node(work=tmp_path, place=ACCOUNT, uplink=MemoryUplink(), status=status())


def test_the_runs_key_is_authorized_and_host_keys_are_published(node: Node) -> None:
    ssh.open_ssh(node, KEY, etc=node.work / "etc")
    path = node.work / "home/.ssh/authorized_keys"
    assert path.read_text() == f"{ssh.OPTIONS} {KEY}\n" and ssh.OPTIONS.startswith("restrict,")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert node.uplink.s3.objects == {
        node.status.identity.keys.host_keys: b"ssh-ed25519 AAAA root@ip-10-0-0-1\n"
    }


@pytest.mark.parametrize("fails", [1, 2, 1000])
def test_host_keys_that_s3_does_not_take_at_once_are_sent_again(
    node: Node, fails: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(uplink, "RETRY_SECONDS", 0)
    monkeypatch.setattr(ssh, "SECONDS", 30.0 if fails < 1000 else 0.0)
    memory = cast(MemoryUplink, node.uplink)
    memory.fails = set(range(1, fails + 1))
    with caplog.at_level(logging.INFO):
        ssh.open_ssh(node, KEY, etc=node.work / "etc")
    is_sent = fails < 1000
    assert (node.status.identity.keys.host_keys in memory.s3.objects) == is_sent
    assert ("may sign in" in caplog.text) == is_sent and ("nobody can attach" in caplog.text) != is_sent


def test_without_a_key_nothing_is_done(node: Node) -> None:
    ssh.open_ssh(node, "", etc=node.work / "etc")
    assert not node.uplink.s3.objects and not list((node.work / "home").iterdir())


def test_in_a_rehearsal_no_user_is_made(node: Node) -> None:
    node.place = REHEARSAL
    ssh.open_ssh(node, KEY, etc=node.work / "etc")
    assert not node.uplink.s3.objects


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
    assert "nobody can attach" in caplog.text and not node.uplink.s3.objects


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
