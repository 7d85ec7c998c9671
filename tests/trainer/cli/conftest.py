"""The launch verb on an account that nothing is launched in, and candles to name."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from trainer.access import Access
from trainer.data.synthetic import synthetic_candles
from trainer.data.writing import write_candles


@pytest.fixture
def rehearsed(applied: Access, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Access:
    """Let the launch verb rehearse on the shared account, from an empty folder."""
    return _connect(applied, monkeypatch, tmp_path)


@pytest.fixture
def as_aws(applied: Access, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Access:
    """Let the launch verb take the shared account for a real one: it asks, and refuses what AWS refuses."""
    return _connect(dataclasses.replace(applied, rehearsal=False), monkeypatch, tmp_path)


@pytest.fixture(scope="session")
def candles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with 3,000 one-minute bars of two symbols."""
    folder = tmp_path_factory.mktemp("candles")
    for symbol in ("BTC-USD", "ETH-USD"):
        write_candles(folder / f"{symbol}_1m.parquet", [synthetic_candles(symbol, bars=3_000)], synthetic=True)
    return folder


def _connect(access: Access, monkeypatch: pytest.MonkeyPatch, folder: Path) -> Access:
    @contextmanager
    def connected(*, rehearse: bool, program: bool = True) -> Iterator[Access]:
        yield access

    monkeypatch.setattr("trainer.cli.launch.connected", connected)
    monkeypatch.chdir(folder)
    monkeypatch.delenv("DATA", raising=False)
    monkeypatch.delenv("MAYFLY_HOME", raising=False)
    return access
