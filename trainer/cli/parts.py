"""Read the numbered parts of a log or of metrics that a node uploads every few seconds: each once, in order,
bounded.
"""

from __future__ import annotations

import functools

from trainer.runs.store import PART_BYTES, Objects, given

MOST_PARTS = 100_000  # under a prefix; a node of ours sends one every few seconds
MOST_BYTES = 256 * 1024 * 1024  # of all parts together; what is beyond is not read


class PartReader:
    """Reads the parts under prefixes, with a limit on the size of each part and of all together."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._last: dict[str, str] = {}  # prefix -> its last part that was read
        self._bytes = 0

    def has_read(self, prefix: str) -> bool:
        """Return whether any part of a prefix was read."""
        return prefix in self._last

    def read_new(self, prefix: str) -> bytes:
        """Return the bytes that were added under a prefix since the last call."""
        parts = []
        for listed in self._objects.list(prefix=prefix, most=MOST_PARTS):
            if listed.key > self._last.get(prefix, "") and self._bytes < MOST_BYTES:
                stored = given(functools.partial(self._objects.get, key=listed.key, first_bytes=PART_BYTES))
                body = stored.body if stored else b""
                parts.append(body)
                self._bytes += len(body)
                self._last[prefix] = listed.key
        return b"".join(parts)
