"""Merge a run's measurements into the bucket's, for later launches; nodes may not write there.

A node's entries are checked before they are stored. Write failures are ignored; the next run tunes again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any

from trainer.base.errors import TrainerError
from trainer.machines.measurements import OBJECT, from_bytes, merged, sound, to_bytes
from trainer.runs import boot
from trainer.runs.store import Conflict, Objects, put_over

TRIES = 5  # tries of a compare-and-swap, against other runs that end at the same time
MOST_PROFILES, MOST_SHAPES = 4, 64  # of one result: a node has one chip and one job


def learn(objects: Objects, measured: Mapping[str, Any]) -> None:
    """Merge entries (profile -> shape -> entry) by compare-and-swap; idempotent. Never raises
    TrainerError.
    """
    checked = islice(sound(measured).items(), MOST_PROFILES)
    newer = {key: dict(islice(entries.items(), MOST_SHAPES)) for key, entries in checked if entries}

    def merge(stored: bytes) -> bytes:
        known = from_bytes(stored)
        both = merged(known, newer)
        return b"" if both == known else to_bytes(both)

    if newer:
        _change(objects, OBJECT, merge)


def learn_boot(objects: Objects, receipt: Mapping[str, Any]) -> None:
    """Store the boot times of a run under its instance type. Never raises TrainerError."""
    if not receipt["boot"] or not receipt["instances"]:
        return
    instance_type = str(receipt["instances"][-1]["instance_type"])
    _change(
        objects,
        boot.OBJECT,
        lambda stored: boot.to_bytes(boot.with_boot(boot.boots_from(stored), instance_type, receipt["boot"])),
    )


def _change(objects: Objects, key: str, change: Callable[[bytes], bytes]) -> None:
    """Change an object by compare-and-swap, from b"" if there is none; b"" leaves it as it is."""
    with suppress(TrainerError):
        for _ in range(TRIES):
            stored = objects.get(key=key)
            body = change(stored.body if stored else b"")
            if not body:
                return
            with suppress(Conflict):
                put_over(objects, key, body, stored)
                return
