"""The request to stop a run: Ctrl-C as it is counted at the desk, and the field of the record that every caller obeys."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType

from trainer.control.cloud import Cloud
from trainer.runs.record import RunRecord
from trainer.runs.store import Conflict, read_record, swap_record


class StopSignal:
    """Ctrl-C, counted: the first press asks for the run's end, the second leaves it to its deadline."""

    def __init__(self) -> None:
        self.presses = 0

    def press(self) -> None:
        """Count one press."""
        self.presses += 1

    @contextmanager
    def installed(self) -> Iterator[StopSignal]:
        """Count SIGINT and SIGTERM while the block runs; in another thread than the main one, do nothing."""

        def pressed(number: int, frame: FrameType | None) -> None:
            self.press()

        before = {}
        try:
            for number in (signal.SIGINT, signal.SIGTERM):
                before[number] = signal.signal(number, pressed)
        except ValueError:  # signals belong to the main thread
            before.clear()
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def request_stop(cloud: Cloud, run_id: str, *, seen: bool = False) -> RunRecord:
    """Store the request in the record, for whichever command drives the run, and return it. `seen`: it was there before."""
    while True:
        record, etag = read_record(cloud.objects, run_id, seen=seen)
        seen = True
        if record.stop_requested_at is not None or record.state in ("ending", "closed"):
            return record
        stopping = replace(record, stop_requested_at=cloud.now())
        try:
            swap_record(cloud.objects, stopping, etag)
        except Conflict:
            continue
        return stopping
