"""Keys of runs at the desk, and host keys as nodes publish them."""

from __future__ import annotations

import base64
import os
import stat
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trainer.attach import keys
from trainer.attach.host_keys import parse_host_keys, read_host_keys
from trainer.attach.keys import find_key, forget_ended, forget_key, make_key
from trainer.attach.request import Forward, parse_forward, shell_line
from trainer.aws.place import ACCOUNT, REHEARSAL
from trainer.base.errors import ConfigError, ConnectionFailed, UsageError
from trainer.cli.verbs import launch
from trainer.node.ssh import PUBLIC_KEY
from trainer.runs.keys import NodeKeys

RUN, OTHER = "20261120-120000-crypto-k3v9", "20261121-120000-crypto-m4w8"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MAYFLY_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


class Receipts:
    """A bucket in which some runs have a receipt."""

    def __init__(self, *runs: str) -> None:
        self._keys = [f"runs/{run}/receipt.json" for run in runs]

    def head(self, *, key: str) -> Any:
        return object() if key in self._keys else None


def test_a_key_pair_is_ed25519_and_readable_by_openssh(home: Path) -> None:
    public = make_key(RUN)
    path = find_key(RUN)
    assert PUBLIC_KEY.fullmatch(public) and path == home / "keys" / RUN
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    said = subprocess.check_output(["ssh-keygen", "-y", "-f", str(path)], text=True)
    assert said.split()[:2] == public.split()
    with pytest.raises(ConfigError, match="can't be kept"):
        make_key(RUN)  # never another one for the same run
    assert make_key(OTHER) != public


def test_a_key_that_others_may_read_is_not_used(tmp_path: Path) -> None:
    make_key(RUN)
    path = find_key(RUN)
    path.chmod(0o640)
    with pytest.raises(ConfigError, match="it must be your file"):
        find_key(RUN)
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="it must be your file"):
        find_key(RUN)


@pytest.mark.parametrize("name", ["..", "../x", "a/b", ".hidden", "", "A", "-rf"])
def test_a_name_that_is_no_run_leads_nowhere(name: str) -> None:
    for call in (make_key, find_key, forget_key):
        with pytest.raises(ConfigError, match="is not a run id"):
            call(name)


def test_a_key_is_forgotten_with_its_runs_receipt_or_by_age(monkeypatch: pytest.MonkeyPatch) -> None:
    assert forget_ended(Receipts()) == []  # type: ignore[arg-type]
    for run in (RUN, OTHER):
        make_key(run)
    assert forget_ended(Receipts(RUN)) == [RUN]  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="this desk has no SSH key"):
        find_key(RUN)
    assert find_key(OTHER) and not forget_key(RUN)
    assert forget_ended(Receipts(), ended=["another"]) == []  # type: ignore[arg-type]
    long_ago = time.time() - keys.LONGEST_LIFE_SECONDS - 1
    os.utime(find_key(OTHER), (long_ago, long_ago))
    assert forget_ended(Receipts()) == [OTHER]  # type: ignore[arg-type]


def test_a_key_that_cannot_be_forgotten_now_is_kept() -> None:
    make_key(OTHER)
    (keys.keys_folder() / RUN).mkdir()  # stands for a key of root's, which this user can't delete
    assert forget_ended(Receipts(RUN, OTHER)) == [OTHER]  # type: ignore[arg-type]
    make_key(OTHER)

    class Unreachable:
        def head(self, *, key: str) -> None:
            raise ConnectionFailed(f"cannot read {key}")

    assert forget_ended(Unreachable()) == []  # type: ignore[arg-type]
    assert find_key(OTHER)


def line(kind: str, *, inside: str = "") -> bytes:
    name = (inside or kind).encode()
    blob = base64.b64encode(len(name).to_bytes(4, "big") + name + b"x" * 36).decode()
    return f"{kind} {blob} root@ip-10-0-0-1\n".encode()


def test_host_keys_are_read_without_weak_kinds() -> None:
    strong = ["ecdsa-sha2-nistp256", "ssh-ed25519", "ssh-rsa"]
    pinned = parse_host_keys(b"".join(line(kind) for kind in (*strong, "ssh-dss")))
    assert [key.kind for key in pinned] == strong


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff\xfe",
        b"ssh-ed25519 ***\n",
        b"ssh-ed25519\n",
        line("ssh-ed25519", inside="ssh-rsa"),
        line("ssh-ed25519") + b"\x1b[2K",
        line("ssh-ed25519") * 17,
        b"#" * 20_000,
        b"-----BEGIN OPENSSH PRIVATE KEY-----\n",
    ],
)
def test_spoiled_host_keys_pin_nothing(body: bytes) -> None:
    assert parse_host_keys(body) == ()


def test_a_node_without_host_keys_is_not_connected_to() -> None:
    class Objects:
        def __init__(self, body: bytes | None) -> None:
            self.body = body

        def get(self, *, key: str, first_bytes: int) -> Any:
            assert key == f"attempts/AROA1:i-1/{RUN}/1/0/host_keys"
            return self if self.body is not None else None

    node = NodeKeys(role_id="AROA1", instance_id="i-1", run_id=RUN, attempt=1)
    with pytest.raises(ConnectionFailed, match="i-1 has not published its host keys yet"):
        read_host_keys(Objects(None), node)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="the host keys of i-1 can't be read"):
        read_host_keys(Objects(b"x"), node)  # type: ignore[arg-type]


def test_ports_and_commands_are_read_as_typed() -> None:
    assert parse_forward("8080:80") == Forward(local=8080, remote=80)
    assert parse_forward("6006") == Forward(local=6006, remote=6006)
    for text in ("", "a:1", "1:2:3", "0:1", "1:65536", "-1:2", "1:", "9" * 5000):
        with pytest.raises(UsageError, match="two ports"):
            parse_forward(text)
    assert shell_line([]) == ""
    assert shell_line(["ls | wc -l"]) == "ls | wc -l"
    assert shell_line(["ls", "a b"]) == "ls 'a b'"


def test_a_launch_makes_a_key_where_its_stack_has_ssh(monkeypatch: pytest.MonkeyPatch) -> None:
    make_key(OTHER)
    ready = SimpleNamespace(outputs=SimpleNamespace(attach="ssh"), objects=Receipts(OTHER))
    lines: list[str] = []
    console: Any = SimpleNamespace(line=lines.append)
    ready.place = ACCOUNT
    assert PUBLIC_KEY.fullmatch(launch._ssh_key(ready, RUN, console)) and find_key(RUN)  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        find_key(OTHER)  # of a run that has ended
    ready.place = REHEARSAL
    assert launch._ssh_key(ready, "run-2", console) == "" and not lines  # type: ignore[arg-type]
    ready.place = ACCOUNT
    monkeypatch.setitem(sys.modules, "paramiko", None)
    assert launch._ssh_key(ready, "run-3", console) == ""  # type: ignore[arg-type]
    assert "attaching to this run will not be possible" in lines[0] and "mayfly[attach]" in lines[0]
    ready.outputs = SimpleNamespace(attach="ssm")
    assert launch._ssh_key(ready, "run-4", console) == ""  # type: ignore[arg-type]
