"""Read ahead: prepare the source of the piece that a worker will probably train next, on a thread beside the training.

Owns the thread, the one source that waits there, and how much memory one may take. It never touches a GPU: a call there from
another thread would spoil the recording of a CUDA graph, and memory is pinned by such a call, too. What is staged lies in
ordinary memory and goes to the device when its model joins, some 100 ms for a million rows.

On a GPU, and where there are more cores than workers, reading so costs the training nothing. A CPU worker on each core would
only read on its own core's time: there nothing is staged (`stages`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from trainer.job import Job
from trainer.pieces.piece import Piece
from trainer.train.source import Source


def stages(job: Job, *, kind: str, num_workers: int, cores: int) -> bool:
    """Tell whether workers read ahead: the job lets them, and there is a GPU or a core that the reading may have."""
    return job.train.stage_gib > 0 and (kind == "cuda" or num_workers < cores)


class Staging:
    """One source at most, read ahead on a thread. Any thread may call it."""

    def __init__(self, read: Callable[[Piece], Source]) -> None:
        self._read = read
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="staging")
        self._lock = threading.Lock()
        self._name = ""
        self._source: Future[Source] | None = None

    def stage(self, piece: Piece | None) -> None:
        """Begin to read the piece's source, and drop what was staged before; with None, only drop that."""
        with self._lock:
            if piece is not None and piece.source == self._name:
                return
            if self._source is not None:
                self._source.cancel()  # what is being read already is read to its end, and dropped
            self._name = piece.source if piece is not None else ""
            self._source = self._thread.submit(self._read, piece) if piece is not None else None

    def claim(self, name: str) -> Future[Source] | None:
        """Hand the source of that name over, read or still being read; None when another one or none is staged.

        It raises what went wrong when it was read, and is no longer staged: the next `stage` does not drop it.
        """
        with self._lock:
            if self._name != name:
                return None
            source, self._name, self._source = self._source, "", None
            return source
