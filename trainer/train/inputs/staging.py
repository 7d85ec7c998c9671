"""Read ahead: prepare the source of a worker's probable next piece, on a thread during training.

Owns the thread and the one staged source. It never touches a GPU: a call from another thread, such as pinning
memory, would break the recording of a CUDA graph. The staged source is in pageable memory and moves to the
device when its model joins, which takes some 100 ms for a million rows.

With a GPU, or with more cores than workers, reading ahead is free. With a CPU worker on each core it would
slow training down, so nothing is staged (`stages`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from trainer.job.pieces.piece import Piece
from trainer.train.inputs.source import Source

STAGE_GIB = 1.0  # of host memory, by `source_gib`: a larger source is read when its turn comes


def stages(*, kind: str, num_workers: int, cores: int) -> bool:
    """Return whether workers read ahead: if there is a GPU or a spare core."""
    return kind == "cuda" or num_workers < cores


class Staging:
    """One source at most, read ahead on a thread. Any thread may call it."""

    def __init__(self, read: Callable[[Piece], Source]) -> None:
        self._read = read
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="staging")
        self._lock = threading.Lock()
        self._name = ""
        self._source: Future[Source] | None = None

    def stage(self, piece: Piece | None) -> None:
        """Start reading the piece's source and drop the one staged before; with None, only drop that."""
        with self._lock:
            if piece is not None and piece.source == self._name:
                return
            if self._source is not None:
                self._source.cancel()  # a read in progress is finished, then dropped
            self._name = piece.source if piece is not None else ""
            self._source = self._thread.submit(self._read, piece) if piece is not None else None

    def claim(self, name: str) -> Future[Source] | None:
        """Return the source of that name, waiting for its read; None if another or none is staged.

        Raises the error of the read. The source is no longer staged: the next `stage` does not drop it.
        """
        with self._lock:
            if self._name != name:
                return None
            source, self._name, self._source = self._source, "", None
            return source
