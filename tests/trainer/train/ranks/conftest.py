"""Ranks of the tests of distributed training, started once: two for all of them, three where a test needs them."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from tests.forks import ROOT
from tests.trainer.train.ranks.ranks import TwoRanks


@contextmanager
def started(count: int, folder: Path, python: list[str]) -> Iterator[TwoRanks]:
    """Yield so many ranks on this machine's CPU."""
    path = folder / "line"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(count)
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    processes = [
        subprocess.Popen(
            [*python, "-m", "tests.trainer.train.ranks.ranks", str(path), str(rank), str(count)],
            cwd=ROOT,
            env=environment,
        )
        for rank in range(count)
    ]
    by_rank: dict[int, Connection] = {}
    for _ in processes:
        connection = Connection(listener.accept()[0].detach())
        by_rank[connection.recv()] = connection
    yield TwoRanks([by_rank[rank] for rank in range(count)])
    for connection in by_rank.values():
        connection.close()
    for process in processes:
        process.kill()
        process.wait()


@pytest.fixture(scope="session")
def two_ranks(tmp_path_factory: pytest.TempPathFactory, python: list[str]) -> Iterator[TwoRanks]:
    """Return two ranks."""
    with started(2, tmp_path_factory.mktemp("ranks"), python) as ranks:
        yield ranks


@pytest.fixture
def three_ranks(tmp_path: Path, python: list[str]) -> Iterator[TwoRanks]:
    """Return three ranks."""
    with started(3, tmp_path, python) as ranks:
        yield ranks
