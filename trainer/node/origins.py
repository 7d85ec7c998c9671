"""Origins of a node's inputs: the stack's cache, if it has one that works, else S3; and counts of both."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainer.node.cache import CacheUnusable, InputCache, cacheable
from trainer.runs.manifest import ManifestInput
from trainer.runs.reports import INPUT_COUNTS

log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class Origins:
    """Counts of a node's inputs from the cache and from S3, in files and bytes, and why the cache was not
    used.
    """

    cache: InputCache | None = None
    cache_failed: str = ""
    kept: bool = False  # whether existing files with the manifest's bytes are used
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(INPUT_COUNTS, 0))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, **more: int) -> None:
        """Add to the counts."""
        with self._lock:
            for name, number in more.items():
                self.counts[name] += number

    def take(self, entry: ManifestInput, target: Path) -> bool:
        """Copy an input from the cache; return whether it was there with the manifest's bytes."""
        if not (cache := self.cache) or not cacheable(entry):
            return False
        try:
            taken = cache.take(entry, target)
        except CacheUnusable as error:
            self._fail(error)
            return False
        if taken == "taken":
            self.count(cache_files=1, cache_bytes=entry.bytes)
        if taken == "refused":
            self.count(cache_refused=1)
            pinned = f"{entry.key} (version {entry.version_id})"
            log.warning("the cache has other bytes for %s: fetching it from S3", pinned)
        return taken == "taken"

    def add(self, entry: ManifestInput, source: Path) -> None:
        """Add an input to the cache, if there is one."""
        if (cache := self.cache) and cacheable(entry):
            try:
                cache.add(entry, source)
                self.count(cache_added=1)
            except CacheUnusable as error:
                self._fail(error)

    def _fail(self, error: CacheUnusable) -> None:
        """Stop using the cache."""
        with self._lock:
            if self.cache is not None:
                log.warning("the cache is not used any more, inputs come from S3: %s", error)
            self.cache, self.cache_failed = None, str(error)

    @property
    def summary(self) -> str:
        """Return the counts in one line."""
        counts = self.counts
        cached = f"{counts['cache_files']} from the cache, {counts['cache_refused']} refused there"
        return f"{counts['s3_files']} files from S3{f', {cached}' if self.cache else ''}"

    def to_dict(self) -> dict[str, Any]:
        """Return the counts and the note for the node's result."""
        return {**self.counts, "cache_failed": self.cache_failed}
