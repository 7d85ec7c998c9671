"""Ranks that tests share: forks that have torch loaded, and call the functions that a test names, together.

python -m tests.trainer.train.ranks.ranks SOCKET RANK COUNT     what `conftest` starts for each
"""

from __future__ import annotations

import importlib
import socket
import sys
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any


class TwoRanks:
    """Two ranks, or three, in a process group (gloo), which do one thing after another."""

    def __init__(self, connections: list[Connection]) -> None:
        self._connections = connections

    def __call__(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Call a function of a module as `function(ranks, *arguments)` on all; return what each returned.

        Raises what a rank raised: then all are at an end.
        """
        for connection in self._connections:
            connection.send((function.__module__, function.__qualname__, arguments))
        answers = [connection.recv() for connection in self._connections]
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return answers


def serve(path: str, rank: int, count: int) -> None:
    """Be one of the ranks until the test's end of the line closes."""
    import torch
    import torch.distributed as dist

    from trainer.train.ranks.group import Ranks

    line = socket.socket(socket.AF_UNIX)
    line.connect(path)
    connection = Connection(line.detach())
    connection.send(rank)
    torch.set_num_threads(1)
    store = dist.FileStore(str(Path(path).with_name("store")), count)
    dist.init_process_group("gloo", rank=rank, world_size=count, store=store, timeout=timedelta(seconds=500))
    ranks = Ranks(rank=rank, count=count, device=torch.device("cpu"))
    while True:
        try:
            module, name, arguments = connection.recv()
        except EOFError:
            return
        try:
            answer = getattr(importlib.import_module(module), name)(ranks, *arguments)
        except Exception as error:  # the test's to judge
            answer = error
        connection.send(answer)


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
