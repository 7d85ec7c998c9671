"""Store a run's tuning in `memory/tuned/` for later launches; nodes may not write there.

A node's entries are checked before they are stored. Write failures are ignored; the next run tunes again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from trainer.errors import TrainerError
from trainer.gpu_profiles.tuned import Entry, from_memory, memory_key, sound, to_memory
from trainer.runs.store import Conflict, Objects

TRIES = 5  # against other runs that end at the same moment
MOST_PROFILES, MOST_SHAPES = 4, 64  # of one result: a node has one chip and one job
_PROFILE = re.compile(r"[A-Za-z0-9_-]{1,80}")


def learn(objects: Objects, found: Mapping[str, Any]) -> None:
    """Keep profile -> shape -> entry, by compare-and-swap; the same again changes nothing. Never raises TrainerError."""
    for key in [key for key in found if _PROFILE.fullmatch(str(key))][:MOST_PROFILES]:
        entries = dict(list(sound(found[key]).items())[:MOST_SHAPES])
        with suppress(TrainerError):
            _merge(objects, key, entries)


def _merge(objects: Objects, key: str, entries: Mapping[str, Entry]) -> None:
    for _ in range(TRIES):
        stored = objects.get(key=memory_key(key))
        known = from_memory(stored.body) if stored else {}
        if (merged := {**known, **entries}) == known:
            return
        body = to_memory(key, merged)
        try:
            if stored:
                objects.put(key=memory_key(key), body=body, if_match=stored.etag)
            else:
                objects.put(key=memory_key(key), body=body, create=True)
            return
        except Conflict:
            continue
