"""Numbered parts that a node puts into S3 every few seconds: its log, its metrics. Each is read once, in order and bounded."""

from __future__ import annotations

import functools

from trainer.runs.store import PART_BYTES, Objects, given

MOST_PARTS = 100_000  # under a prefix; a node of ours sends one every few seconds
MOST_BYTES = 256 * 1024 * 1024  # of all parts together; what is beyond is not read


class PartReader:
    """Reads the parts of some prefixes; of each, and of all together, no more than a node of ours sends."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._last: dict[str, str] = {}  # prefix -> its last part that was read
        self._bytes = 0

    def has_read(self, prefix: str) -> bool:
        """Return whether any part of a prefix was read."""
        return prefix in self._last

    def read_new(self, prefix: str) -> bytes:
        """Return what came under a prefix since the last call."""
        parts = []
        for listed in self._objects.list(prefix=prefix, most=MOST_PARTS):
            if listed.key > self._last.get(prefix, "") and self._bytes < MOST_BYTES:
                stored = given(functools.partial(self._objects.get, key=listed.key, first_bytes=PART_BYTES))
                body = stored.body if stored else b""
                parts.append(body)
                self._bytes += len(body)
                self._last[prefix] = listed.key
        return b"".join(parts)
