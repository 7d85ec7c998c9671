"""Events that a command writes to MAYFLY_EVENTS, one JSON object a line, read strictly and within bounds.

A program of Mayfly's tells its own events. Any other command tells numbers, which become events of ours:

    {"step": 100, "steps": 5000, "epoch": 1, "epochs": 3, "loss": 0.31, "accuracy": 0.8}

`step`, `steps`, `epoch`, `epochs` and `loss` are shown as progress; every other number is a curve with its
own name. Malformed lines are counted and left out: a command may be wrong or hostile.
"""

from __future__ import annotations

import json
import logging
import math
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from trainer.base.files import LineFile
from trainer.base.instants import utc_now
from trainer.base.strict_json import MOST_NUMBER, Fields, Unsound, read_object
from trainer.base.text import some_of
from trainer.job.script import PICK
from trainer.node.redaction import Redaction
from trainer.runs.manifest import Tells
from trainer.runs.reports import MOST_COUNT, MOST_MODELS
from trainer.runs.training_events import CURVE_NAME, MOST_SCORES

log = logging.getLogger("trainer.node")
# Of a line. The first event of a training names all of its models.
MOST_LINE_BYTES = {"numbers": 16 * 1024, "events": 16 * 2**20}
MOST_BLOCK = 1 << 20  # read at a time
MOST_BYTES = {"numbers": 64 * 2**20, "events": 2**30}  # of a run's events, as they are passed on
SOURCES = {"progress": "model", "gpu": "gpu"}  # of events that come all the time
# Of a run's time so far, between two reports of a source that are kept: a report draws 240 instants of it.
KEPT_SHARE = 1 / 240
MOST_SOURCES = 2 * MOST_MODELS  # a command may invent names
COUNTS = ("step", "steps", "epoch", "epochs")
MOST_KEPT, MOST_NAMED = 100, 6  # other numbers' names, and those in a note


class CommandEvents:
    """The file that a command appends its events to, read as it grows."""

    def __init__(self, path: Path, redaction: Redaction | None = None, *, tells: Tells = "numbers") -> None:
        self.unsound = 0
        self.has_more = False  # whether the last block did not reach the end of the file
        self.writer_ended = False  # then the file's last line is whole, also without its end
        self._redaction, self._tells = redaction or Redaction({}), tells
        self._most = MOST_LINE_BYTES[tells]
        self._path, self._offset, self._rest = path, 0, b""
        self._file: tuple[int, int] | None = None

    def new(self) -> Iterator[dict[str, Any]]:
        """Yield each whole line in the next block of the file: an event, or counts, loss and the other
        numbers.
        """
        for line in self._lines():
            if not line.strip():
                continue
            try:
                if len(line) > self._most:
                    raise Unsound("a line that is too long")
                if self._tells == "events":
                    line = self._redaction.redacted_bytes(line)
                    yield dict(self._read(line, most_number=math.inf).values)  # a loss may be any number
                    continue
                event = _numbers(self._read(line))
                if any(map(self._redaction.shows, event["values"])):
                    raise Unsound("a secret as a name")
                yield event
            except Unsound:
                self.unsound += 1

    def _read(self, line: bytes, most_number: float = MOST_NUMBER) -> Fields:
        return read_object(line, most_bytes=self._most, name="the event", most_number=most_number)

    def _lines(self) -> list[bytes]:
        block = self._block()
        *lines, self._rest = (self._rest + block).split(b"\n")
        if self.writer_ended and not self.has_more:  # what a next start appends is no part of it
            lines, self._rest = [*lines, self._rest], b""
        if len(self._rest) > self._most:  # its end counts as another line later
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
    """events.jsonl, which the agent uploads in parts: our events with their time, up to `most_bytes`.

    Of the reports that come all the time, by a model of its progress and by a GPU, it keeps fewer the longer
    a run lasts, so that those of days still fit into its report.
    """

    def __init__(
        self,
        path: Path,
        *,
        most_bytes: int,
        now: Callable[[], datetime] = utc_now,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file, self._most, self._now, self._written = LineFile(path), most_bytes, now, 0
        self._clock, self._began = clock, clock()
        # hash of a source -> when its last report was kept: names are a command's, and may be long
        self._kept_at: dict[int, float] = {}

    def write(self, event: Mapping[str, Any]) -> None:
        """Append one event, in one write of a whole line. While the disk is full, which the command may have
        filled, it waits.
        """
        if self._written > self._most or not self._keeps(event):
            return
        line = json.dumps({"time": self._now().isoformat(timespec="milliseconds"), **event}).encode() + b"\n"
        self._written += len(line)
        if self._written <= self._most:
            self._file.append(line)
        else:
            log.warning("its events take more than %d MiB: the rest has no curves", self._most >> 20)

    def _keeps(self, event: Mapping[str, Any]) -> bool:
        kind, now = event["event"], self._clock()
        if (key := SOURCES.get(kind)) is None:
            return True
        source = hash((kind, event.get(key)))
        if now - self._kept_at.get(source, -math.inf) < (now - self._began) * KEPT_SHARE:
            return False
        if source in self._kept_at or len(self._kept_at) < MOST_SOURCES:
            self._kept_at[source] = now
        return True


@dataclass(kw_only=True)
class BestMetric:
    """Best value of a piece's metric: the first of `metrics`, name -> min or max, that it reports."""

    metrics: Mapping[str, str]
    key: str = "script.best"  # of the job, that names its metric
    _values: dict[str, float] = field(default_factory=dict)
    _others: dict[str, None] = field(default_factory=dict)  # names of the first of its other numbers

    def add(self, event: Mapping[str, Any]) -> bool:
        """Take in one event as `CommandEvents` yields it; return whether it has one of the metrics."""
        numbers = {**event["values"], **({"loss": event["loss"]} if event["loss"] is not None else {})}
        for name, value in numbers.items():
            if name in self.metrics:
                pick = PICK[self.metrics[name]]
                self._values[name] = pick(self._values.get(name, value), value)
            elif len(self._others) < MOST_KEPT:
                self._others[name] = None
        return not self.metrics.keys().isdisjoint(numbers)

    def to_dict(self) -> dict[str, Any]:
        """Return its name, value and better end; {} if it reported none."""
        name = next((name for name in self.metrics if name in self._values), "")
        return {"metric": name, "value": self._values[name], "better": self.metrics[name]} if name else {}

    def note(self) -> str:
        """Return what is amiss if it reported numbers and none of `metrics`; '' otherwise."""
        is_named = len(self.metrics) == 1  # by the job
        if self._values or not (self._others or is_named):
            return ""
        named = some_of(list(self._others), MOST_NAMED)
        told = f"its events have {named}" if named else "it has no events"
        if is_named:
            return f"{self.key} names {next(iter(self.metrics))}, and {told}"
        name = next(iter(self._others))
        return (
            f"{told}, and none is known to be its score: name it in script.best, as {name}:min or {name}:max"
        )


class StepRate:
    """Steps a second, from the steps that are reported and when they arrive."""

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
    others = {name: value for name, value in fields.values.items() if name not in (*COUNTS, "loss")}
    numbers = {
        name: float(value)
        for name, value in others.items()
        # Whole ones may be larger, and none is in a result.
        if type(value) in (int, float) and abs(value) <= MOST_NUMBER and CURVE_NAME.fullmatch(name)
    }
    return {"counts": counts, "loss": loss, "values": dict(list(numbers.items())[:MOST_SCORES])}
