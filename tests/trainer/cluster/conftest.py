"""Nodes of a cluster on this machine: an address, a token and a file each."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path

import pytest

from trainer.base.cluster import Cluster, write_cluster

OfNode = Callable[..., tuple[Path, dict[str, str]]]


@pytest.fixture
def of_node(tmp_path: Path) -> OfNode:
    """Return a function that writes the files of a node of three, and returns the cluster's and the variables
    of its processes.
    """
    first, second = os.getpid() >> 8 & 0xFF, os.getpid() & 0xFF
    addresses = tuple(f"127.{first}.{second}.{node + 2}" for node in range(3))
    common = secrets.token_hex(32)

    def write(node: int, *, token: str = common) -> tuple[Path, dict[str, str]]:
        file, secret = tmp_path / f"node{node}.json", tmp_path / f"token{node}"
        write_cluster(file, Cluster(node=node, addresses=addresses))
        secret.touch(mode=0o600)
        secret.write_text(token)
        return file, {"RAY_AUTH_TOKEN_PATH": str(secret)}

    return write
