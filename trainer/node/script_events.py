"""Events that a script writes to MAYFLY_EVENTS, one JSON object a line: read strictly and within bounds,
converted to ours.

    {"step": 100, "steps": 5000, "epoch": 1, "epochs": 3, "loss": 0.31, "accuracy": 0.8}

`step`, `steps`, `epoch`, `epochs` and `loss` are shown as progress; every other number is a curve with its
own name. Malformed lines are counted and left out. A script may be wrong or hostile: none of its lines
becomes an event unchanged.
"""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from trainer.base.strict_json import MOST_NUMBER, Fields, Unsound, read_object
from trainer.node.redaction import Redaction
from trainer.runs.record import utc_now
from trainer.runs.reports import MOST_COUNT
from trainer.runs.training_events import CURVE_NAME, MOST_SCORES

MOST_LINE_BYTES = 16 * 1024
MOST_BLOCK = 1 << 20  # read at a time
MOST_BYTES = 64 * 2**20  # of a run's events, as they are passed on
COUNTS = ("step", "steps", "epoch", "epochs")
# The metric of a script in receipts and messages is the first of these that it reports; `max` or `min` picks
# the better value.
METRICS: Mapping[str, Callable[[float, float], float]] = {
    "score": max,
    **dict.fromkeys(("validation_loss", "val_loss", "eval_loss"), min),
    **dict.fromkeys(("val_accuracy", "eval_accuracy"), max),
    **dict.fromkeys(("loss", "train_loss"), min),
}


class ScriptEvents:
    """The file that a script appends its events to, read as it grows."""

    def __init__(self, path: Path, redaction: Redaction | None = None) -> None:
        self.unsound = 0
        self.has_more = False  # whether the last block did not reach the end of the file
        self._redaction = redaction or Redaction({})
        self._path, self._offset, self._rest = path, 0, b""
        self._file: tuple[int, int] | None = None

    def new(self) -> Iterator[dict[str, Any]]:
        """Yield the counts, the loss and the other numbers of each whole line in the next block of
        the file.
        """
        for line in self._lines():
            if not line.strip():
                continue
            try:
                if len(line) > MOST_LINE_BYTES:
                    raise Unsound("a line that is too long")
                event = _numbers(read_object(line, most_bytes=MOST_LINE_BYTES, name="the event"))
                if any(map(self._redaction.shows, event["values"])):
                    raise Unsound("a secret as a name")
                yield event
            except Unsound:
                self.unsound += 1

    def _lines(self) -> list[bytes]:
        block = self._block()
        *lines, self._rest = (self._rest + block).split(b"\n")
        if len(self._rest) > MOST_LINE_BYTES:  # its end counts as another line later
            self.unsound += 1
            self._rest = b""
        return lines

    def _block(self) -> bytes:
        self.has_more = False
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:  # not written yet, or a link
            return b""
        with os.fdopen(descriptor, "rb") as file:
            about = os.fstat(descriptor)
            if not stat.S_ISREG(about.st_mode):
                return b""
            if (about.st_dev, about.st_ino) != self._file or about.st_size < self._offset:  # rewritten
                self._file, self._offset, self._rest = (about.st_dev, about.st_ino), 0, b""
            file.seek(self._offset)
            block = file.read(MOST_BLOCK)
        self._offset += len(block)
        self.has_more = self._offset < about.st_size
        return block


class EventFile:
    """events.jsonl, which the agent uploads in parts: our events with their time, up to MOST_BYTES."""

    def __init__(self, path: Path, *, now: Callable[[], datetime] = utc_now) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file, self._now, self._written = path.open("ab", buffering=0), now, 0

    def write(self, event: Mapping[str, Any]) -> None:
        """Append one event, in one write of a whole line; a full disk, which the script may have filled,
        loses it.
        """
        line = json.dumps({"time": self._now().isoformat(timespec="milliseconds"), **event}).encode() + b"\n"
        self._written += len(line)
        if self._written <= MOST_BYTES:
            with suppress(OSError):
                self._file.write(line)


@dataclass(kw_only=True)
class BestMetric:
    """Best value of a script's metric: the first of METRICS that it reports."""

    _values: dict[str, float] = field(default_factory=dict)

    def add(self, event: Mapping[str, Any]) -> None:
        """Take in one event as `ScriptEvents` yields it."""
        numbers = {**event["values"], **({"loss": event["loss"]} if event["loss"] is not None else {})}
        for name, better in METRICS.items():
            if name in numbers:
                self._values[name] = better(self._values.get(name, numbers[name]), numbers[name])

    def to_dict(self) -> dict[str, Any]:
        """Return its name and value; {} if the script reported none."""
        name = next((name for name in METRICS if name in self._values), "")
        return {"metric": name, "value": self._values[name]} if name else {}


class StepRate:
    """Steps a second, from the steps that a script reports and when they arrive."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._last, self.value = clock, (0, clock()), 0.0

    def update(self, step: int) -> float:
        """Record a step and return the rate since one at least a second older."""
        now = self._clock()
        before, at = self._last
        if step < before:
            self._last = (step, now)
        elif now - at >= 1:
            self.value, self._last = (step - before) / (now - at), (step, now)
        return self.value


def _numbers(fields: Fields) -> dict[str, Any]:
    counts = {key: fields.whole(key, most=MOST_COUNT) for key in COUNTS if fields.values.get(key) is not None}
    loss = fields.number("loss")
    others = {
        name: float(value)
        for name, value in fields.values.items()
        if name not in (*COUNTS, "loss")
        and type(value) in (int, float)
        and abs(value) <= MOST_NUMBER  # whole ones may be larger, and none is in a result
        and CURVE_NAME.fullmatch(name)
    }
    return {"counts": counts, "loss": loss, "values": dict(list(others.items())[:MOST_SCORES])}
