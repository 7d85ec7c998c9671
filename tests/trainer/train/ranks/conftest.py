"""Two ranks, started once for all tests of distributed training."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from multiprocessing.connection import Connection

import pytest

from tests.forks import ROOT
from tests.trainer.train.ranks.ranks import RANKS, TwoRanks


@pytest.fixture(scope="session")
def two_ranks(tmp_path_factory: pytest.TempPathFactory, python: list[str]) -> Iterator[TwoRanks]:
    """Return two ranks on this machine's CPU."""
    path = tmp_path_factory.mktemp("ranks") / "line"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(RANKS)
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    processes = [
        subprocess.Popen(
            [*python, "-m", "tests.trainer.train.ranks.ranks", str(path), str(rank)],
            cwd=ROOT,
            env=environment,
        )
        for rank in range(RANKS)
    ]
    by_rank: dict[int, Connection] = {}
    for _ in processes:
        connection = Connection(listener.accept()[0].detach())
        by_rank[connection.recv()] = connection
    yield TwoRanks([by_rank[rank] for rank in range(RANKS)])
    for connection in by_rank.values():
        connection.close()
    for process in processes:
        process.kill()
        process.wait()
