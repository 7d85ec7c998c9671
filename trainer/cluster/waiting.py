"""The pieces that a supervisor may begin: its own alone, or a queue that several machines share.

Both have one interface, so that the supervisor knows nothing of other machines.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from trainer.base.signs import sign
from trainer.cluster.hand_out import MOST_LOSSES
from trainer.cluster.shared_queue import SharedQueue
from trainer.job.pieces.piece import Piece
from trainer.job.pieces.queue import PieceQueue

# What another node left of a piece: all of it is in S3; its newest checkpoint is laid out here; nothing.
MADE, CHECKPOINT, NOTHING = "made", "checkpoint", "nothing"
ANSWERS = (MADE, CHECKPOINT, NOTHING)
Emit = Callable[[dict[str, Any]], None]
STRAGGLER_SECONDS = 60.0  # that another node has a piece while node 0 waits for the end


class Carrier(Protocol):
    """Finds out what another node left of pieces that this one took."""

    def __len__(self) -> int:
        """Return the number of pieces without an answer."""

    def ask(self, piece: Piece, node: int) -> None:
        """Begin to look for what a node left of a piece, and of the trials of its study."""

    def arrived(self) -> list[tuple[Piece, str]]:
        """Return the pieces with an answer, and the answers, each once; with the ends of trials."""


class Waiting(Protocol):
    """Pieces that wait. Methods of a shared queue may raise TrainingFailed: it is lost."""

    handles: Sequence[int]  # descriptors to wait on, besides workers: `look` is due when one is ready

    def open(self, pieces: list[Piece]) -> None:
        """Begin with these pieces."""

    def take(
        self, *, held: Collection[str], staged: Collection[str], elsewhere: Collection[str], shape: str = ""
    ) -> Piece | None:
        """Remove and return the next piece, see `PieceQueue.peek`; None if none may begin now. `shape`: that
        of the pieces beside which it is to train, see `Piece.shape`; '': of any. A study that machines share
        is left to one that stands idle, while there is one for each at most.
        """

    def has(self, source: str) -> bool:
        """Return whether a piece of the source waits."""

    def ahead(self, count: int, *, held: Collection[str], elsewhere: Collection[str]) -> list[Piece]:
        """Return the pieces that a worker would take next, see `PieceQueue.ahead`."""

    def put(self, piece: Piece) -> None:
        """Let a piece that this node has begin here once more."""

    def done(self, model: str) -> None:
        """Note that a piece of this node is over: done, or failed."""

    def hear(self, event: Mapping[str, Any]) -> Collection[str]:
        """Take in an event of a piece of this node; return the models that are to end early."""

    def look(self, *, is_busy: bool) -> list[tuple[Piece, str]]:
        """Take in what other nodes did; return pieces that have failed, with reasons."""

    def leave_to_others(self, pieces: Collection[Piece]) -> bool:
        """Give pieces to other nodes, since no device is left here; return whether there are any nodes."""

    def is_over(self, *, has_devices: bool) -> bool:
        """Return whether a node without a piece at work has nothing to wait for."""

    def elsewhere(self, here: Collection[str]) -> set[str]:
        """Return the models that are other nodes' matter, besides those that ended here."""


class OwnPieces:
    """The pieces of a single machine."""

    handles: Sequence[int] = ()

    def __init__(self) -> None:
        self._queue = PieceQueue(())
        self.has, self.ahead = self._queue.has, self._queue.ahead

    def open(self, pieces: list[Piece]) -> None:
        self._queue = PieceQueue(pieces)
        self.has, self.ahead = self._queue.has, self._queue.ahead

    def take(
        self, *, held: Collection[str], staged: Collection[str], elsewhere: Collection[str], shape: str = ""
    ) -> Piece | None:
        if not len(self._queue):
            return None
        return self._queue.take(held=held, staged=staged, elsewhere=elsewhere)

    def put(self, piece: Piece) -> None:
        self._queue.put(piece)

    def done(self, model: str) -> None:
        pass

    def hear(self, event: Mapping[str, Any]) -> Collection[str]:
        return ()

    def look(self, *, is_busy: bool) -> list[tuple[Piece, str]]:
        return []

    def leave_to_others(self, pieces: Collection[Piece]) -> bool:
        return False

    def is_over(self, *, has_devices: bool) -> bool:
        return not len(self._queue)

    def elsewhere(self, here: Collection[str]) -> set[str]:
        return set()


class SharedPieces:
    """The pieces of several machines. What was another node's begins once it is known what that node left of
    it in S3.
    """

    def __init__(
        self,
        queue: SharedQueue,
        emit: Emit,
        carrier: Carrier,
        *,
        most_carried: int = 1,
    ) -> None:
        """`most_carried`: pieces that are asked for at a time."""
        self._queue, self._emit, self._most_carried = queue, emit, most_carried
        self.handles: Sequence[int] = (queue.handle,)
        self.has, self.ahead = queue.has, queue.ahead
        self._carried = carrier
        self._arrived: deque[Piece] = deque()
        self._named: set[str] = set()  # stragglers
        self._all: list[str] = []

    def open(self, pieces: list[Piece]) -> None:
        self._all = [piece.name for piece in pieces]
        self._queue.open(pieces)

    def take(
        self, *, held: Collection[str], staged: Collection[str], elsewhere: Collection[str], shape: str = ""
    ) -> Piece | None:
        if self._arrived:
            return self._arrived.popleft()
        if len(self._carried) >= self._most_carried or (shape and self._queue.is_scarce):
            return None
        taken = self._queue.take(held=held, staged=staged)
        if taken is None:
            return None
        piece, origin = taken
        if origin is None:
            return piece
        self._carried.ask(piece, origin)
        return None

    def put(self, piece: Piece) -> None:
        self._arrived.append(piece)

    def done(self, model: str) -> None:
        self._queue.done(model)

    def hear(self, event: Mapping[str, Any]) -> Collection[str]:
        return ()

    def look(self, *, is_busy: bool) -> list[tuple[Piece, str]]:
        self._queue.look()
        for piece, answer in self._carried.arrived():
            if answer == MADE:
                self._queue.done(piece.name)
            else:
                self._arrived.append(piece)
        for node in self._queue.lost():
            self._emit({"event": "node_lost", "node": node})
        if not is_busy:
            self._name_stragglers()
        reason = f"{MOST_LOSSES} nodes were lost while they trained it"
        return [(piece, reason) for piece in self._queue.spoiled()]

    def _name_stragglers(self) -> None:
        """Say what another node has had for long. That one has a piece is progress: its own watch ends it if
        it hangs.
        """
        for late in self._queue.stragglers():
            sign(late.piece.title)
            if late.piece.name not in self._named and late.seconds > STRAGGLER_SECONDS:
                self._named.add(late.piece.name)
                straggler = {"node": late.node, "seconds": round(late.seconds, 1)}
                self._emit({"event": "straggler", **late.piece.identity, **straggler})

    def leave_to_others(self, pieces: Collection[Piece]) -> bool:
        if self._queue.is_head and not self._queue.others:
            return False
        if pieces or self._arrived:
            self._queue.give_back([*pieces, *self._arrived])
            self._arrived.clear()
        return True

    def is_over(self, *, has_devices: bool) -> bool:
        if not has_devices and not self._queue.is_head:
            return True
        return self._queue.is_over and not len(self._carried) and not self._arrived

    def elsewhere(self, here: Collection[str]) -> set[str]:
        return set(self._all) - set(here)
