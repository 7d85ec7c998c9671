"""Ctrl-C at the desk, and what is stored of it in the record: the request to stop, which every caller obeys,
and that the desk leaves the run to control.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from enum import Enum
from types import FrameType
from typing import Protocol

from trainer.aws.objects import Conflict
from trainer.control.cloud import Cloud
from trainer.runs.record import RunRecord
from trainer.runs.store import read_record, swap_record


class Wish(Enum):
    """The user's wish for a run: none, end it, leave it running, or stop waiting for its end."""

    GO_ON = "go on"
    END = "end"
    LEAVE = "leave"
    ABANDON = "abandon"


class Question(Protocol):
    """The question after the first Ctrl-C on a terminal. It is polled, so that the run goes on meanwhile."""

    def open(self) -> None:
        """Ask the question."""

    def answer(self) -> Wish | None:
        """Return the answer, None if there is none yet."""

    def close(self) -> None:
        """Withdraw the question."""


class StopSignal:
    """Ctrl-C, counted. Without a question the first press ends the run; with one it asks, and the second
    press ends the run.

    A press while the run ends gives up waiting for it. Handlers set fields only; `attend` acts on them, in
    the main thread.
    """

    def __init__(self, question: Question | None = None, *, wish: Wish = Wish.GO_ON) -> None:
        """Start with a wish: END if the run's end is requested already."""
        self.wish, self.presses = wish, 0
        self._question = question
        self._asking = self._is_open = False

    @property
    def asks(self) -> bool:
        """Return whether a press asks first."""
        return self._question is not None

    def press(self) -> None:
        """Count one press."""
        self.presses += 1
        if self._question is None or self._asking or self.wish is not Wish.GO_ON:
            self.end()
        else:
            self._asking = True

    def end(self) -> None:
        """End the run without a question; the second time, stop waiting for its end."""
        self._asking = False
        self.wish = Wish.ABANDON if self.wish in (Wish.END, Wish.ABANDON) else Wish.END

    def attend(self) -> None:
        """Ask the question, read its answer, or withdraw it."""
        if self._question is None:
            return
        if self._asking and not self._is_open:
            self._is_open = True
            self._question.open()
        if self._asking and (answer := self._question.answer()) is not None:
            self._asking, self.wish = False, answer
        if self._is_open and not self._asking:
            self._is_open = False
            self._question.close()

    @contextmanager
    def installed(self) -> Iterator[StopSignal]:
        """Handle SIGINT as a press and SIGTERM as `end`; outside the main thread do nothing."""

        def pressed(number: int, frame: FrameType | None) -> None:
            self.press() if number == signal.SIGINT else self.end()

        before = {}
        try:
            for number in (signal.SIGINT, signal.SIGTERM):
                before[number] = signal.signal(number, pressed)
        except ValueError:  # signals belong to the main thread
            before.clear()
        try:
            yield self
        finally:
            self._asking = False
            self.attend()
            for number, handler in before.items():
                signal.signal(number, handler)


def request_stop(cloud: Cloud, run_id: str, *, seen: bool = False) -> RunRecord:
    """Store the request in the run's record and return the record. `seen`: it is known to exist."""

    def stopping(record: RunRecord) -> RunRecord:
        if record.stop_requested_at is not None or record.state in ("ending", "closed"):
            return record
        return replace(record, stop_requested_at=cloud.now())

    return _change(cloud, run_id, stopping, seen=seen)


def leave_to_control(cloud: Cloud, run_id: str) -> RunRecord:
    """Store that control goes on with a run of a desk, and return the record. One that has ended, or that no
    instance does, stays as it is.
    """

    def left(record: RunRecord) -> RunRecord:
        if record.driver == "control" or record.state in ("ending", "closed") or not record.has_instances:
            return record
        return record.handed_over(cloud.now())

    return _change(cloud, run_id, left, seen=True)


def _change(cloud: Cloud, run_id: str, change: Callable[[RunRecord], RunRecord], *, seen: bool) -> RunRecord:
    """Change a record by compare-and-swap, after a lost race on the newer one; return it."""
    while True:
        record, etag = read_record(cloud.objects, run_id, seen=seen)
        seen, changed = True, change(record)
        if changed == record:
            return record
        with suppress(Conflict):
            swap_record(cloud.objects, changed, etag)
            return changed
