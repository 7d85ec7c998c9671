"""Host memory of reading and preparing a symbol, and whether its rows stay on the disk instead. An estimate;
standard library only.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from trainer.base.settings import CHUNKS, FLOAT
from trainer.job.job import Job

GIB = 2**30
_CELLS, _CELL_BYTES = 6, 8  # of a file's row: time, four prices, volume
_PIECE_BYTES = 48 << 20  # temporaries of computing features, part of a series at a time
_OTHER_BYTES = 24  # of a bar: its clock, holes and calendar
# Of a worker's part of the host memory, that a piece's rows may take. The rest is for its candles, for the
# rows of the piece before or after it, and for the system.
ROWS_SHARE = 0.25
LIMIT = Path("/sys/fs/cgroup/memory.max")  # of a container; "max" without one


def host_gib() -> float:
    """Return the GiB of memory of this machine, or of this container."""
    size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):
        size = min(size, int(LIMIT.read_text(encoding="ascii")))
    return size / GIB


def source_gib(*, bars: int, rows: int, folds: int, job: Job = Job()) -> float:
    """Return the host memory that reading and preparing a symbol takes at its peak, in GiB; an estimate.

        48 MiB + the larger of
            rows x 48 B x 3                                        reading
            bars x (inputs x 4 B + 48 B + 24 B + folds x 32 B)     preparing

    Each column of the job's files adds 8 B to the 48. `rows` are the symbol's rows in its files, held as
    read, as numbers, and in what allocators keep. What they took is given back before `bars`, those of them
    that are used, get their inputs; beside these are the candles, and for each fold clock, labels, window
    starts and temporaries. Measured with 4,000,000 bars of one file: 0.88 GiB (estimate 0.99; 2026-11-27).
    """
    row_bytes = (_CELLS + len(job.data.further)) * _CELL_BYTES
    preparing = bars * (len(job.data.inputs) * FLOAT + row_bytes + _OTHER_BYTES + folds * 32)
    return (_PIECE_BYTES + max(rows * 3 * row_bytes, preparing)) / GIB


def rows_gib(job: Job, *, bars: int) -> float:
    """Return the GiB of a piece's rows: float32 inputs of each bar."""
    return bars * len(job.data.inputs) * FLOAT / GIB


def rows_on_disk(job: Job, *, bars: int, host_gib: float, workers: int) -> bool:
    """Return whether rows of so many bars stay on the disk of a host with this memory and these workers.

    Only for a model that reads chunks, whose bars lie side by side: windows are drawn from all over them.
    """
    return job.model.reads == CHUNKS and rows_gib(job, bars=bars) > ROWS_SHARE * host_gib / max(1, workers)
