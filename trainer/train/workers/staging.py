"""Sources that a worker's helpers read ahead: those of the pieces that it will probably train next.

A staged source is in pageable memory and moves to the device when its model joins, which takes some 100 ms
for a million rows. The supervisor names no more of them than fit into `helpers.STAGE_GIB`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from trainer.job.pieces.piece import Piece
from trainer.train.workers.helpers import Reading


class Staging:
    """Sources that are read ahead, by name. Any thread may call it."""

    def __init__(self, read: Callable[[Piece], Reading]) -> None:
        """`read` begins to read a piece's source."""
        self._read = read
        self._lock = threading.Lock()
        self._readings: dict[str, Reading] = {}

    def stage(self, pieces: Sequence[Piece]) -> None:
        """Read the sources of these pieces ahead, in this order, and drop all others."""
        with self._lock:
            names = {piece.source for piece in pieces}
            for name in self._readings.keys() - names:
                self._readings.pop(name).source.cancel()  # a read in progress is finished, then dropped
            for piece in pieces:
                if piece.source not in self._readings:
                    self._readings[piece.source] = self._read(piece)

    def claim(self, name: str) -> Reading | None:
        """Return the source of that name, which is no longer staged: the next `stage` does not drop it; None
        if it is not staged.
        """
        with self._lock:
            return self._readings.pop(name, None)
