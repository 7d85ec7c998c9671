"""The launch verb on an AWS of the test's choice, and candles to name."""

from __future__ import annotations

import dataclasses
import io
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from trainer.aws.access import Access
from trainer.aws.objects import Objects
from trainer.aws.place import ACCOUNT
from trainer.cli.main import main
from trainer.data.read.writing import write_candles
from trainer.data.synthetic import synthetic_candles


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def mayfly(account: Objects, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Run one command on the account; return its exit code, its stdout (read as JSON with --json) and its
    stderr.
    """

    def call(*words: str) -> Any:
        code = main(list(words))
        out, err = capsys.readouterr()
        return code, json.loads(out) if "--json" in words else out, err

    return call


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, desk_python: Path) -> Callable[[Access], Access]:
    """Let the launch verb find this AWS, whatever its flags say, from an empty folder. Its data checks are
    forks.
    """
    monkeypatch.setattr(sys, "executable", str(desk_python))

    def to(access: Access) -> Access:
        @contextmanager
        def connected(*, rehearse: bool, program: bool = True) -> Iterator[Access]:
            yield access

        monkeypatch.setattr("trainer.cli.verbs.launch.connected", connected)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("MAYFLY_HOME", str(tmp_path / "home"))
        return access

    return to


@pytest.fixture
def rehearsed(applied: Access, connect: Callable[[Access], Access]) -> Access:
    """The account that tests share, as a rehearsal."""
    return connect(applied)


@pytest.fixture
def as_aws(applied: Access, connect: Callable[[Access], Access]) -> Access:
    """The same account, taken for a real one: the verb asks, and refuses what AWS refuses."""
    return connect(dataclasses.replace(applied, place=ACCOUNT))


@pytest.fixture(scope="session")
def candles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with 3,000 one-minute bars of two symbols."""
    folder = tmp_path_factory.mktemp("candles")
    for symbol in ("BTC-USD", "ETH-USD"):
        write_candles(
            folder / f"{symbol}_1m.parquet", [synthetic_candles(symbol, bars=3_000)], synthetic=True
        )
    return folder
