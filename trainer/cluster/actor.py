"""The queue as an actor on Ray's head: JSON in, JSON out, so that no object of ours crosses the wire.

Its class is found by name on the head; Ray sends no code of it. Everything received is read strictly.
"""

from __future__ import annotations

import json
import time
from typing import Any

from trainer.base.cluster import MOST_NODES
from trainer.base.strict_json import Fields, Unsound, read_object
from trainer.cluster.hand_out import HandOut, Reply

NAME = "queue"
MOST_PIECES = 1_000_000
MOST_BYTES = 256 << 20  # of the list of pieces
MOST_SOURCES = 10_000
KINDS = ("open", "join", "take", "done", "back", "hear", "ping", "leave")


class QueueActor:
    """The queue of one attempt."""

    def __init__(self, silent_seconds: float) -> None:
        self._silent_seconds = silent_seconds
        self._hand_out: HandOut | None = None
        self._digest = ""

    def ask(self, body: bytes) -> bytes:
        """Return the answer to a message, both JSON: a `Reply`, or why the message is refused."""
        try:
            reply = self._answer(read_object(body, most_bytes=MOST_BYTES, name="a node's message"))
        except Unsound as error:
            reply = Reply(refused=f"its message is malformed: {error}").to_dict()
        return json.dumps(reply).encode()

    def _answer(self, fields: Fields) -> dict[str, Any]:
        kind, node = fields.choice("ask", KINDS), fields.whole("node", most=MOST_NODES - 1)
        if kind == "open" and node == 0 and self._hand_out is None:
            self._open(fields)
        if self._hand_out is None:
            return {"wait": True}
        if kind in ("open", "join"):
            if fields.value("digest").sha256() != self._digest:
                return Reply(refused=f"node {node} makes other pieces of the job than node 0").to_dict()
            return self._hand_out.join(node).to_dict()
        return self._of(kind, node, fields, self._hand_out).to_dict()

    def _open(self, fields: Fields) -> None:
        rows = [item.items(least=3, most=3) for item in fields.value("pieces").items(most=MOST_PIECES)]
        pieces = [(name.text(), source.text(), size.number(least=0)) for name, source, size in rows]
        self._digest = fields.value("digest").sha256()
        self._hand_out = HandOut(pieces, clock=time.monotonic, silent_seconds=self._silent_seconds)

    def _of(self, kind: str, node: int, fields: Fields, queue: HandOut) -> Reply:
        if kind == "take":
            held, staged = (
                [item.text() for item in fields.value(name).items(most=MOST_SOURCES)]
                for name in ("held", "staged")
            )
            return queue.take(node, held=held, staged=staged)
        if kind == "done":
            return queue.done(node, fields.whole("piece", most=MOST_PIECES))
        if kind == "back":
            return queue.give_back(
                node, [item.whole(most=MOST_PIECES) for item in fields.value("pieces").items()]
            )
        return {"hear": queue.hear, "ping": queue.ping, "leave": queue.leave}[kind](node)
