"""The queue of several machines in this process, without Ray: one `QueueOfNode` for each, and a clock."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Any

from trainer.cluster.hand_out import NOBODY, HandOut
from trainer.cluster.shared_queue import Straggler
from trainer.job.pieces.piece import Piece


def hand_out_of(pieces: Collection[Piece], clock: Any) -> HandOut:
    """Return the state of a queue of these pieces."""
    return HandOut([(one.name, one.source, one.estimate) for one in pieces], clock=clock)


class Time:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class QueueOfNode:
    """`SharedQueue` of a node."""

    def __init__(self, hand_out: HandOut, node: int) -> None:
        self._hand_out, self._node = hand_out, node
        self._reply = hand_out.join(node)
        self._begun = set(self._reply.changes)
        self.handle = os.open(os.devnull, os.O_RDONLY)
        self.is_head = node == 0
        self._lost: list[int] = []
        self._spoiled: list[Piece] = []

    def open(self, pieces: list[Piece]) -> None:
        self._pieces = pieces

    def _took(self, reply: Any) -> Any:
        self._reply = reply
        self._begun ^= set(reply.changes)
        self._lost += reply.lost
        self._spoiled += [self._pieces[number] for number in reply.spoiled]
        return reply

    def look(self) -> None:
        self._took(self._hand_out.hear(self._node))

    def take(self, *, held: Collection[str] = (), staged: Collection[str] = ()) -> Any:
        reply = self._took(self._hand_out.take(self._node, held=held, staged=staged))
        if reply.piece == NOBODY:
            return None
        return self._pieces[reply.piece], None if reply.origin == NOBODY else reply.origin

    def done(self, name: str) -> None:
        number = [one.name for one in self._pieces].index(name)
        self._took(self._hand_out.done(self._node, number))

    def give_back(self, pieces: Collection[Piece]) -> None:
        self._took(self._hand_out.give_back(self._node, [self._pieces.index(one) for one in pieces]))

    def has(self, source: str) -> bool:
        return False

    def ahead(self, count: int, **_: Any) -> list[Piece]:
        return []

    @property
    def is_scarce(self) -> bool:
        return len(self._pieces) - len(self._begun) < 1 + self.others

    @property
    def others(self) -> int:
        return int(self._reply.others)

    @property
    def is_over(self) -> bool:
        return bool(self._reply.is_over)

    def lost(self) -> list[int]:
        lost, self._lost = self._lost, []
        return lost

    def spoiled(self) -> list[Piece]:
        spoiled, self._spoiled = self._spoiled, []
        return spoiled

    def stragglers(self) -> list[Straggler]:
        return [
            Straggler(node=node, piece=self._pieces[number], seconds=seconds)
            for node, number, seconds in self._reply.held
        ]
