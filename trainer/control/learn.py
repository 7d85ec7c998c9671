"""Merge a run's measurements into the bucket's, for later launches; nodes may not write there.

A node's entries are checked before they are stored. Write failures are ignored; the next run tunes again.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from typing import Any

from trainer.base.errors import TrainerError
from trainer.machines.measurements import OBJECT, Measurements, from_bytes, merged, sound, to_bytes
from trainer.runs import boot
from trainer.runs.store import Conflict, Objects

TRIES = 5  # tries of a compare-and-swap, against other runs that end at the same time
MOST_PROFILES, MOST_SHAPES = 4, 64  # of one result: a node has one chip and one job


def learn(objects: Objects, measured: Mapping[str, Any]) -> None:
    """Merge entries (profile -> shape -> entry) by compare-and-swap; idempotent. Never raises
    TrainerError.
    """
    checked = islice(sound(measured).items(), MOST_PROFILES)
    newer = {key: dict(islice(entries.items(), MOST_SHAPES)) for key, entries in checked if entries}
    if newer:
        with suppress(TrainerError):
            _merge(objects, newer)


def learn_boot(objects: Objects, receipt: Mapping[str, Any]) -> None:
    """Store the boot times of a run under its instance type. Never raises TrainerError."""
    if not receipt["boot"] or not receipt["instances"]:
        return
    instance_type = str(receipt["instances"][-1]["instance_type"])
    with suppress(TrainerError):
        for _ in range(TRIES):
            stored = objects.get(key=boot.OBJECT)
            body = boot.to_bytes(
                boot.with_boot(boot.boots_from(stored.body) if stored else {}, instance_type, receipt["boot"])
            )
            with suppress(Conflict):
                if stored:
                    objects.put(key=boot.OBJECT, body=body, if_match=stored.etag)
                else:
                    objects.put(key=boot.OBJECT, body=body, create=True)
                return


def _merge(objects: Objects, newer: Measurements) -> None:
    for _ in range(TRIES):
        stored = objects.get(key=OBJECT)
        known = from_bytes(stored.body) if stored else {}
        if (both := merged(known, newer)) == known:
            return
        try:
            if stored:
                objects.put(key=OBJECT, body=to_bytes(both), if_match=stored.etag)
            else:
                objects.put(key=OBJECT, body=to_bytes(both), create=True)
            return
        except Conflict:
            continue
