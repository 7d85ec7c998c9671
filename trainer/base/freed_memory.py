"""Give memory that was freed back to the system. Standard library only."""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress

LARGE_BARS = 2_000_000  # of a series: below, what is kept costs less than asking for it again


def release_freed_memory() -> None:
    """Give freed blocks of glibc's heap, and of Arrow's, back to the system.

    Both keep them for the next ones: after a large series is read, as much again as its bars.
    """
    if (arrow := sys.modules.get("pyarrow")) is not None:
        arrow.default_memory_pool().release_unused()
    if sys.platform.startswith("linux"):
        with suppress(OSError, AttributeError):  # musl has neither the name nor the function
            ctypes.CDLL("libc.so.6").malloc_trim(0)
