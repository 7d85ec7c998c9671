"""The queue that the nodes of an attempt share, as a node's supervisor or agent uses it: a `PieceQueue` whose
`take` asks node 0.

Owns the member process (`member`), which has Ray: this process never imports it. Every call may raise
TrainingFailed: the head is lost, or it let this node go.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from trainer.base.cluster import MOST_NODES, Cluster, read_cluster
from trainer.base.environment import for_ray
from trainer.base.errors import Stopped, TrainingFailed
from trainer.base.extras import needs
from trainer.base.strict_json import MOST_TEXT, Fields, Unsound, Value, read_object
from trainer.cluster.hand_out import NOBODY
from trainer.cluster.ray_node import HEALTH, QUIET
from trainer.job.pieces.piece import Piece
from trainer.job.pieces.queue import PieceQueue

AGAIN_SECONDS = 1.0  # between two questions for a piece, while none waits
MOST_LINE = 64 << 20
CLOSE_SECONDS = 15.0
DO = "Read `mayfly logs`; the next attempt goes on from the newest checkpoints."


@dataclass(frozen=True, kw_only=True)
class Straggler:
    """A piece for which node 0 waits at the end."""

    node: int
    piece: Piece
    seconds: float


@contextmanager
def _sound_answer() -> Iterator[None]:
    """Raise TrainingFailed for an answer that makes no sense: it comes from another machine."""
    try:
        yield
    except Unsound as error:
        raise TrainingFailed("the queue is lost", why=str(error), do=DO) from error


class SharedQueue:
    """The pieces of a run that have not begun on any node; `close` (or leaving the `with`) leaves it."""

    def __init__(
        self,
        cluster: Path,
        *,
        token: Path | None = None,
        silent_seconds: float | None = None,
        is_stopping: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start the member of this node; it gets ready while the caller goes on. `token`: the nodes' file, if
        not RAY_AUTH_TOKEN_PATH. Calls that wait raise Stopped once `is_stopping`. Raises UsageError for a
        malformed file, and ConfigError where Ray is not installed.
        """
        self.cluster: Cluster = read_cluster(cluster)
        needs("ray")
        self._clock, self._is_stopping = clock, is_stopping
        self._pieces: list[Piece] = []
        self._numbers: dict[str, int] = {}
        self._left = PieceQueue(())
        self._waits: set[int] = set()
        self._is_over, self.others = False, 0
        self._asked_at = self._heard_at = float("-inf")
        self._spoiled: list[Piece] = []
        self._lost: list[int] = []
        self._held: list[Straggler] = []
        self._folder = Path(tempfile.mkdtemp(prefix="mf-", dir="/tmp"))  # sockets need a short path
        words = [sys.executable, "-m", "trainer.cluster.member", "--cluster", str(cluster.absolute())]
        words += ["--folder", str(self._folder)]
        words += ["--silence", str(silent_seconds)] if silent_seconds else []
        self._member = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=for_ray(
                {**HEALTH, **QUIET, **({"RAY_AUTH_TOKEN_PATH": str(token)} if token else {})},
                code=Path(__file__).parents[2],
            ),
            start_new_session=True,  # Ctrl-C is its parent's; Ray's processes are its own
        )
        assert self._member.stdout is not None
        self._answers = self._member.stdout

    def __enter__(self) -> SharedQueue:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self, pieces: Sequence[Piece]) -> None:
        """Join with the pieces of the job, the same on every node. Waits for node 0, at most 15 minutes."""
        self._pieces = list(pieces)
        self._numbers = {piece.name: number for number, piece in enumerate(self._pieces)}
        self._left, self._waits = PieceQueue(self._pieces), set(range(len(self._pieces)))
        rows = [[piece.name, piece.source, piece.estimate] for piece in self._pieces]
        digest = {"digest": hashlib.sha256(json.dumps(rows).encode()).hexdigest()}
        self._ask({"ask": "open", **digest, "pieces": rows} if self.is_head else {"ask": "join", **digest})

    @property
    def is_head(self) -> bool:
        """Return whether this node has the queue, and so stays until every piece is done."""
        return self.cluster.is_head

    @property
    def handle(self) -> int:
        """Return the descriptor to wait on: it is ready when the queue is lost, and `look` is due."""
        return self._answers.fileno()

    def look(self) -> None:
        """Learn what is new, at most once a second. Raises TrainingFailed if the queue is lost."""
        if wait([self.handle], timeout=0):
            self._read()
        if self._clock() - self._heard_at >= AGAIN_SECONDS:
            self._ask({"ask": "hear"})

    def __len__(self) -> int:
        return len(self._left)

    @property
    def is_scarce(self) -> bool:
        """Return whether fewer pieces wait than there are machines, as far as this node knows."""
        return len(self._left) < len(self.cluster.addresses)

    def has(self, source: str) -> bool:
        """Return whether a piece of the source waits, as far as this node knows."""
        return self._left.has(source)

    def ahead(self, count: int, *, held: Collection[str], elsewhere: Collection[str]) -> list[Piece]:
        """Return the pieces that a worker would probably take next, see `PieceQueue.ahead`."""
        return self._left.ahead(count, held=held, elsewhere=elsewhere)

    @_sound_answer()
    def take(
        self, *, held: Collection[str] = (), staged: Collection[str] = ()
    ) -> tuple[Piece, int | None] | None:
        """Take the next piece, see `PieceQueue.peek`, and the node that had it before; None if none waits.
        While none waits, the queue is asked once a second.
        """
        if self._is_over or (not len(self._left) and self._clock() - self._asked_at < AGAIN_SECONDS):
            return None
        self._asked_at = self._clock()
        answer = self._ask({"ask": "take", "held": sorted(held), "staged": sorted(staged)})
        number = answer.whole("piece", least=NOBODY, most=len(self._pieces) - 1)
        if number == NOBODY:
            return None
        origin = answer.whole("origin", least=NOBODY, most=MOST_NODES - 1)
        return self._pieces[number], None if origin == NOBODY else origin

    def done(self, name: str) -> None:
        """Say that a piece of this node is over: done, or failed."""
        self._ask({"ask": "done", "piece": self._numbers[name]})

    def give_back(self, pieces: Collection[Piece]) -> None:
        """Give pieces of this node to the others."""
        self._ask({"ask": "back", "pieces": [self._numbers[piece.name] for piece in pieces]})

    @property
    def is_over(self) -> bool:
        """Return whether this node, which has nothing in hand, may leave: all is done, or, on another node
        than the head, nothing waits.
        """
        return self._is_over or (not self.is_head and not len(self._left))

    def spoiled(self) -> list[Piece]:
        """Return, once, the pieces that have failed since two nodes were lost with them. Head only."""
        spoiled, self._spoiled = self._spoiled, []
        return spoiled

    def lost(self) -> list[int]:
        """Return, once, the nodes that were lost. Head only."""
        lost, self._lost = self._lost, []
        return lost

    def stragglers(self) -> list[Straggler]:
        """Return what other nodes have in hand, as of the last answer. Head only."""
        return self._held

    def close(self) -> None:
        """Leave, and end Ray here: pieces in hand go to others."""
        assert self._member.stdin is not None
        with suppress(OSError):
            self._member.stdin.close()
        try:
            self._member.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self._member.kill()
            self._member.wait()
        self._answers.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    @_sound_answer()
    def _ask(self, message: dict[str, Any]) -> Fields:
        assert self._member.stdin is not None
        with suppress(BrokenPipeError):  # it has ended, and its last line says why
            self._member.stdin.write(json.dumps(message).encode() + b"\n")
            self._member.stdin.flush()
        answer = self._read()
        self._heard_at = self._clock()
        for number in map(self._number, answer.value("changes").items()):
            self._change(number)
        self._is_over, self.others = bool(answer.truth("is_over")), answer.whole("others", most=MOST_NODES)
        self._spoiled += [self._pieces[self._number(item)] for item in answer.value("spoiled").items()]
        self._lost += [item.whole(most=MOST_NODES - 1) for item in answer.value("lost").items()]
        rows = [item.items(least=3, most=3) for item in answer.value("held").items()]
        self._held = [
            Straggler(node=node.whole(), piece=self._pieces[self._number(number)], seconds=seconds.number())
            for node, number, seconds in rows
        ]
        return answer

    def _number(self, value: Value) -> int:
        return value.whole(most=len(self._pieces) - 1)

    def _change(self, number: int) -> None:
        """Take a piece out of those that wait, or put it back."""
        if number in self._waits:
            self._waits.discard(number)
            self._left.remove(self._pieces[number])
        else:
            self._waits.add(number)
            self._left.put(self._pieces[number])

    @_sound_answer()
    def _read(self) -> Fields:
        """Return the member's next answer. Raises TrainingFailed if it says that the queue is lost."""
        while not wait([self.handle], timeout=AGAIN_SECONDS):
            if self._is_stopping():
                raise Stopped("stopped while it waited for the queue of node 0")
        line = self._answers.readline(MOST_LINE)
        if not line:
            why = f"its member ended with exit code {self._member.wait()}"
            raise TrainingFailed("the queue is lost", why=why, do=DO)
        answer = read_object(line, most_bytes=MOST_LINE, name="the queue's answer")
        if what := answer.text("gone", "", most=MOST_TEXT):
            raise TrainingFailed(what, why=answer.text("why", "", most=MOST_TEXT), do=DO)
        return answer
