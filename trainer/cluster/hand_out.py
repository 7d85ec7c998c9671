"""Hand out the pieces of a queue that several nodes share: the state behind `actor`, without Ray.

Pieces have numbers, by their place in the list that node 0 opens the queue with; every node makes the same
list. A node that leaves, or is not heard for too long, gives back what it had: the next one to take such a
piece is told where it was. Standard library and `job` only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from trainer.job.pieces.piece import Piece
from trainer.job.pieces.queue import PieceQueue

SILENT_SECONDS = 30.0  # a node says something every few seconds
MOST_LOSSES = 2  # nodes lost with one piece in hand, before it counts as the fault of the piece
NOBODY = -1


@dataclass(frozen=True, kw_only=True)
class Reply:
    """The answer to everything that a node says."""

    piece: int = NOBODY  # number of a piece to begin
    origin: int = NOBODY  # the node that had it before, if one did
    changes: tuple[int, ...] = ()  # numbers of pieces that began, or wait again, since the node's last ones
    is_over: bool = False  # every piece is done or has failed
    others: int = 0  # nodes besides this one that are there
    spoiled: tuple[int, ...] = ()  # pieces that have failed because nodes were lost with them; for node 0
    held: tuple[tuple[int, int, float], ...] = ()  # for node 0: node, piece and seconds of what others have
    lost: tuple[int, ...] = ()  # nodes lost since node 0 heard last; for node 0
    refused: str = ""  # why this node does not belong to the queue

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return asdict(self)


@dataclass(kw_only=True)
class _Node:
    heard: float
    seen: int = 0  # of the changes
    sources: frozenset[str] = frozenset()  # that it held when it took its last piece
    pieces: dict[int, float] = field(default_factory=dict)  # in hand, with when it took them
    finished: list[int] = field(default_factory=list)


class HandOut:
    """The pieces of a run, and the nodes that take them. Not safe for threads."""

    def __init__(
        self,
        pieces: Sequence[tuple[str, str, float]],
        *,
        clock: Callable[[], float],
        silent_seconds: float = SILENT_SECONDS,
    ) -> None:
        """`pieces`: name, source and estimate of each, in the order of their numbers."""
        made = [
            Piece(name=str(number), title=name, kind="", series=(), source=source, estimate=estimate)
            for number, (name, source, estimate) in enumerate(pieces)
        ]
        self._pieces, self._queue = made, PieceQueue(made)
        self._clock, self._silent_seconds = clock, silent_seconds
        self._open = set(range(len(made)))  # not done and not failed
        self._nodes: dict[int, _Node] = {}
        self._out: dict[int, str] = {}  # nodes that do not belong any more, and why
        self._origin: dict[int, int] = {}
        self._losses: Counter[int] = Counter()
        self._changes: list[int] = []
        self._spoiled: list[int] = []
        self._lost: list[int] = []

    def join(self, node: int) -> Reply:
        """Let a node in."""
        if node in self._nodes or node in self._out:
            return Reply(refused=self._out.get(node, f"node {node} is there already"))
        self._nodes[node] = _Node(heard=self._clock())
        return self._reply(node)

    def take(self, node: int, *, held: Collection[str], staged: Collection[str]) -> Reply:
        """Hand a piece to a node, if one waits: by `PieceQueue`, sources held by other nodes last."""
        if refused := self._hear(node):
            return refused
        mine = self._nodes[node]
        if not len(self._queue):
            return self._reply(node)
        elsewhere = {source for other, one in self._nodes.items() if other != node for source in one.sources}
        piece = self._queue.take(held=held, staged=staged, elsewhere=elsewhere - set(held))
        number = int(piece.name)
        mine.pieces[number] = self._clock()
        mine.sources = frozenset({*held, piece.source})
        self._changes.append(number)
        return self._reply(node, piece=number, origin=self._origin.get(number, NOBODY))

    def done(self, node: int, number: int) -> Reply:
        """Note that a node is done with a piece, which may have failed."""
        if refused := self._hear(node):
            return refused
        if self._nodes[node].pieces.pop(number, None) is not None:
            self._open.discard(number)
            self._nodes[node].finished.append(number)
        return self._reply(node)

    def give_back(self, node: int, numbers: Collection[int]) -> Reply:
        """Let pieces that a node had wait again."""
        if refused := self._hear(node):
            return refused
        self._return(node, [number for number in numbers if number in self._nodes[node].pieces])
        return self._reply(node)

    def hear(self, node: int) -> Reply:
        """Return what other nodes did since this one last heard."""
        return self._hear(node) or self._reply(node)

    def ping(self, node: int) -> Reply:
        """Note that a node's member is alive; what is new stays for the node."""
        return self._hear(node) or Reply()

    def leave(self, node: int) -> Reply:
        """Let a node go; what it had waits again."""
        if node in self._nodes:
            self._return(node, list(self._nodes[node].pieces))
            del self._nodes[node]
            self._out[node] = f"node {node} has left"
        return Reply()

    def _hear(self, node: int) -> Reply | None:
        now = self._clock()
        if node in self._nodes:
            self._nodes[node].heard = now
        for other, one in list(self._nodes.items()):
            if now - one.heard > self._silent_seconds:
                self._lose(other)
        if node in self._nodes:
            return None
        return Reply(refused=self._out.get(node, f"node {node} did not join"))

    def _lose(self, node: int) -> None:
        """Give what a silent node had to others, and what it finished, too: its last models may not have left
        it.
        """
        had = self._nodes[node]
        self._losses.update(had.pieces.keys())
        spoiled = [number for number in had.pieces if self._losses[number] >= MOST_LOSSES]
        for number in spoiled:
            del had.pieces[number]
            self._open.discard(number)
        self._spoiled += spoiled
        self._open.update(had.finished)
        self._return(node, [*had.pieces, *had.finished])
        del self._nodes[node]
        self._out[node] = f"node {node} was not heard for {self._silent_seconds:.0f} s"
        self._lost.append(node)

    def _return(self, node: int, numbers: Collection[int]) -> None:
        for number in numbers:
            self._nodes[node].pieces.pop(number, None)
            self._origin[number] = node
            self._queue.put(self._pieces[number])
            self._changes.append(number)

    def _reply(self, node: int, *, piece: int = NOBODY, origin: int = NOBODY) -> Reply:
        mine, others = self._nodes[node], [each for each in self._nodes if each != node]
        changes, mine.seen = tuple(self._changes[mine.seen :]), len(self._changes)
        reply = Reply(
            piece=piece,
            origin=origin,
            changes=changes,
            is_over=not self._open,
            others=len(others),
        )
        if node:
            return reply
        now = self._clock()
        held = [(each, n, now - at) for each in others for n, at in self._nodes[each].pieces.items()]
        spoiled, self._spoiled = tuple(self._spoiled), []
        lost, self._lost = tuple(self._lost), []
        return Reply(**{**asdict(reply), "held": tuple(held), "spoiled": spoiled, "lost": lost})
