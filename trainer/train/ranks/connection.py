"""A rank's connection to the supervisor: receives the assignment, sends events. When it closes, the rank
ends.

The socket is in a folder that only this user can enter; messages are pickled, as `multiprocessing` does
between processes of one program.
"""

from __future__ import annotations

import os
import socket
import threading
import traceback
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from trainer.base.environment import RankEnvironment
from trainer.base.process_state import die_with_the_parent, write_stacks_at_abort
from trainer.job.pieces.piece import Piece
from trainer.train.ranks.hanging import dump
from trainer.train.tuning.timing import is_out_of_memory
from trainer.train.workers.assignment import WorkerSettings

MOST_TRACEBACK = 8_000  # characters


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """The piece to train and its settings, sent once to every rank."""

    piece: Piece
    settings: WorkerSettings
    kind: str  # cuda or cpu
    sharded: bool = False  # each rank holds a part of the model (FSDP2)


class RankConnection:
    """One rank's end of the connection."""

    def __init__(self, place: RankEnvironment) -> None:
        """Connect to the supervisor. From then on this process ends with torchrun and with the supervisor."""
        # torchelastic starts each rank in its own session, so killing torchrun's group misses it
        die_with_the_parent()
        write_stacks_at_abort()
        line = socket.socket(socket.AF_UNIX)
        line.connect(place.socket)
        self._connection = Connection(line.detach())
        self._identity = {"worker": place.rank, "pid": os.getpid()}
        self._sending = threading.Lock()
        self.report({"event": "hello", "restart": place.restart})
        self.assignment: Assignment = self._connection.recv()
        threading.Thread(target=self._wait_for_the_end, name="supervisor-watch", daemon=True).start()

    def report(self, event: dict[str, Any]) -> None:
        """Send an event. Called by the checkpoint thread, too."""
        with self._sending:
            self._connection.send({**event, **self._identity})

    def crashed(self, error: BaseException) -> None:
        """Send the error that ends this rank."""
        lines, reason = "".join(traceback.format_exception(error)), f"{type(error).__name__}: {error}"
        crash = {"reason": reason[:500], "traceback": lines[-MOST_TRACEBACK:]}
        causes = {"follows": follows_another(error), "out_of_memory": is_out_of_memory(error)}
        with suppress(OSError):  # the supervisor is gone
            self.report({"event": "crashed", **crash, **causes})

    def _wait_for_the_end(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                self._connection.recv()  # the only message asks where this rank is
                dump(self._identity["worker"])
                self.report({"event": "rank_dumped"})
        os._exit(1)


def follows_another(error: BaseException) -> bool:
    """Return whether an error only reports that another rank is gone or does not answer."""
    words, text = ("gloo", "nccl", "connection closed by peer"), str(error).lower()
    return isinstance(error, RuntimeError) and any(word in text for word in words)
