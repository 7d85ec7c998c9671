"""Pieces that a training took over from another node. The agent fetches what that node left of them in S3.

The training asks by an event, `taken_over`, with the piece and the node. The agent answers in a JSON file,
which grows: an entry for each model, by its name.

    left     made (its model is in S3: there is nothing to train), checkpoint (it, or one of a trial, lies in
             the folder of checkpoints), or nothing
    ended    how trials of its study ended

Without a file, pieces begin at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainer.base.files import read_plain
from trainer.base.strict_json import Unsound, Value, read_object
from trainer.cluster.waiting import ANSWERS, NOTHING
from trainer.job.pieces.piece import Piece
from trainer.job.search import MOST_TRIALS, SearchSettings
from trainer.job.trials import TrialEnd, read_end

MOST_BYTES = 64 << 20
MOST_SECONDS = 900.0  # then a piece begins from the start
LOOK_SECONDS = 0.5


class Carried:
    """The pieces of other nodes that a training took: `Carrier` by an event and a file."""

    def __init__(
        self,
        path: Path | None,
        emit: Callable[[dict[str, Any]], None],
        *,
        search: SearchSettings = SearchSettings(),  # noqa: B008  (frozen)
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path, self._emit, self._search, self._clock = path, emit, search, clock
        self._waiting: dict[str, tuple[Piece, float]] = {}
        self._looked_at = float("-inf")

    def __len__(self) -> int:
        return len(self._waiting)

    def ask(self, piece: Piece, node: int) -> None:
        """Ask for what a node left of a piece."""
        self._emit({"event": "taken_over", **piece.identity, "node": node})
        self._waiting[piece.name] = (piece, self._clock())

    def arrived(self) -> list[tuple[Piece, str]]:
        """Return the pieces with an answer, and the answers, each once."""
        now = self._clock()
        if not self._waiting or now - self._looked_at < LOOK_SECONDS:
            return []
        self._looked_at = now
        known = self._answers()
        ready = [
            (replace(piece, trials=ended) if ended else piece, left)
            for name, (piece, since) in self._waiting.items()
            if self._path is None or name in known or now - since > MOST_SECONDS
            for left, ended in (known.get(name, (NOTHING, ())),)
        ]
        for piece, _ in ready:
            del self._waiting[piece.name]
        return ready

    def _answers(self) -> dict[str, tuple[str, tuple[TrialEnd, ...]]]:
        try:
            body = read_plain(self._path, most_bytes=MOST_BYTES) if self._path else b"{}"
            fields = read_object(body, most_bytes=MOST_BYTES, name="what was fetched").entries()
            return {name: self._answer(value) for name, value in fields.items()}
        except (OSError, Unsound):  # none yet
            return {}

    def _answer(self, value: Value) -> tuple[str, tuple[TrialEnd, ...]]:
        """Return an answer; a malformed one, made of what another machine wrote, is as good as nothing."""
        try:
            fields = value.fields()
            ended = tuple(read_end(item, self._search) for item in fields.rows("ended", most=MOST_TRIALS))
            return fields.choice("left", ANSWERS), ended
        except Unsound:
            return NOTHING, ()
