"""The client where no server can be: it says so in one line, and imports nothing of the server."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import trainer
from trainer.base.errors import ConfigError
from trainer.rehearsal import client
from trainer.rehearsal.client import default_root, rehearsal, stop_server


def test_only_linux_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(ConfigError, match="needs Linux or a container"), rehearsal(tmp_path / "root"):
        pass
    assert not (tmp_path / "root").exists()


def test_a_missing_moto_is_named_with_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="mayfly\\[rehearsal\\]"), rehearsal(tmp_path):
        pass


def test_a_server_that_does_not_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "START_SECONDS", 0.5)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    (tmp_path / "server.log").write_text("no space left on device\n")
    with pytest.raises(ConfigError, match="no space left on device"), rehearsal(tmp_path):
        pass


def test_a_note_of_a_dead_server_is_no_server(tmp_path: Path) -> None:
    (tmp_path / "server.json").write_text('{"url": "http://127.0.0.1:9", "pid": 1}')
    assert not stop_server(tmp_path)
    assert not stop_server(tmp_path / "nothing")


def test_the_root_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAYFLY_HOME", "/somewhere")
    assert default_root() == Path("/somewhere")
    monkeypatch.delenv("MAYFLY_HOME")
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert default_root() == Path("/data/mayfly")


def test_a_look_where_nothing_was_rehearsed_creates_nothing(tmp_path: Path) -> None:
    root = tmp_path / "mayfly"
    error = r"nothing was rehearsed.*launch --rehearse"
    with pytest.raises(ConfigError, match=error), rehearsal(root, create=False):
        pass
    assert not stop_server(root)
    assert not root.exists()


def test_the_client_imports_nothing_of_the_server() -> None:
    heavy = ("moto", "boto3", "trainer.rehearsal.server")
    code = f"import sys, trainer.rehearsal.client; print([name for name in {heavy} if name in sys.modules])"
    folder = str(Path(next(iter(trainer.__path__))).parent)
    command = [sys.executable, "-c", code]
    told = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"
