"""Read a run's log and its events from the numbered parts that its nodes upload every few seconds: each once,
in order, bounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from trainer.aws.objects import Objects
from trainer.base.errors import PermissionDenied
from trainer.base.text import lines_of
from trainer.control.cloud import Cloud
from trainer.control.observe import bootstrap_log
from trainer.control.reported import at_once, part_of
from trainer.runs.keys import NodeKeys
from trainer.runs.store import read_record
from trainer.runs.training_events import EventReader

Epochs = Mapping[str, Mapping[int, Mapping[str, Any]]]  # piece -> epoch -> its event
MOST_PARTS = 100_000  # under a prefix; a node of ours sends one every few seconds
MOST_BYTES = 256 * 1024 * 1024  # of all parts together; what is beyond is not read
READ_TOGETHER = 50


class PartReader:
    """Reads the parts under prefixes, with a limit on the size of each part and of all together."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._last: dict[str, str] = {}  # prefix -> its last part that was read
        self._bytes = 0
        self.left_out = ""  # the first part that the limit left out

    def has_read(self, prefix: str) -> bool:
        """Return whether any part of a prefix was read."""
        return prefix in self._last

    def read_new(self, prefix: str) -> bytes:
        """Return the bytes that were added under a prefix since the last call."""
        last, parts, size = self._last.get(prefix, ""), list[bytes](), self._bytes
        listed = self._objects.list(prefix=prefix, most=MOST_PARTS, after=last)
        for begin in range(0, len(listed), READ_TOGETHER):
            if size >= MOST_BYTES:
                self.left_out = self.left_out or listed[begin].key
                break
            some = listed[begin : begin + READ_TOGETHER]
            parts += at_once(some, partial(part_of, self._objects), "parts")
            last, size = some[-1].key, size + sum(map(len, parts[-len(some) :]))
        if parts:
            self._last[prefix], self._bytes = last, size
        return b"".join(parts)

    def read_end(self, prefix: str, lines: int) -> bytes:
        """Return the last parts under a prefix, which have at least so many whole lines, or all. `read_new`
        goes on after them.
        """
        listed, parts = self._objects.list(prefix=prefix, most=MOST_PARTS), list[bytes]()  # the last first
        end, wanted = len(listed), lines
        while end and lines and wanted >= 0 and self._bytes < MOST_BYTES:  # 0: a line may begin before
            begin = max(0, end - READ_TOGETHER)
            some = b"".join(at_once(listed[begin:end], partial(part_of, self._objects), "parts"))
            end, wanted = begin, wanted - some.count(b"\n")
            parts.append(some)
            self._bytes += len(some)
        if listed:
            self._last[prefix] = listed[-1].key
        return b"".join(reversed(parts))


class LogReader:
    """Reads the log of one run, each part once, in order.

    If a node has sent no part, because its agent never started, it reads bootstrap.log, else the console
    output.
    """

    def __init__(self, cloud: Cloud, run_id: str) -> None:
        self._cloud, self._objects, self._run_id = cloud, cloud.objects, run_id
        self._parts = PartReader(cloud.objects)
        # bootstrap.log's key, or the console's instance -> the text that was read
        self._booted: dict[str, str] = {}
        self._text = ""  # that was read and not returned
        self._is_cut = False  # and the text says so

    def read_new(self) -> str:
        """Return the text of the parts that came since the last call. Raises UsageError if there is no such
        run. What was read before another error comes with the next call.
        """
        for label, keys in self._nodes():
            new = self._parts.read_new(keys.log).decode(errors="replace")
            self._text += _labelled(new or self._read_boot(keys), label)
        if self._parts.left_out and not self._is_cut:
            self._is_cut = True
            size, rest = f"{MOST_BYTES >> 20} MiB of it are read", self._parts.left_out
            self._text += f"the log is longer: {size}, the rest is in the bucket from {rest} on\n"
        text, self._text = self._text, ""
        return text

    def read_last(self, lines: int) -> str:
        """Return the last lines of all that there is, without reading all of it: a log of days has tens of
        thousands of parts. `read_new` goes on after it. Raises UsageError if there is no such run.
        """
        text = ""
        for label, keys in reversed(self._nodes()):
            end = self._parts.read_end(keys.log, max(0, lines - text.count("\n")))
            text = _labelled(end.decode(errors="replace") or self._read_boot(keys), label) + text
        return "".join(lines_of(text)[-lines:])

    def _nodes(self) -> list[tuple[str, NodeKeys]]:
        """Return the nodes of every attempt, each with the label of its lines."""
        record, _ = read_record(self._objects, self._run_id)
        return [
            (f"node {number} | " if len(nodes) > 1 else "", keys)
            for nodes in record.nodes_by_attempt
            for number, keys in enumerate(nodes)
        ]

    def _read_boot(self, keys: NodeKeys) -> str:
        if self._parts.has_read(keys.log) or not keys.instance_id:  # without an instance there is no boot
            return ""
        text, source = bootstrap_log(self._objects, keys), keys.bootstrap_log
        if not text:
            source = keys.instance_id
            try:
                text = self._cloud.console_output(instance_id=keys.instance_id)
            except PermissionDenied as error:  # the log may still come
                text = f"{error}\n"
        before = self._booted.get(source, "")
        if not text.startswith(before):  # its beginning was cut off
            return ""
        self._booted[source] = text
        return text[len(before) :]


def _labelled(text: str, label: str) -> str:
    return "".join(f"{label}{line}" for line in lines_of(text)) if label else text


@dataclass(kw_only=True)
class RunEvents:
    """The events of a run: lines as stored in S3, parsed events, and the number of malformed lines."""

    raw: bytes = b""
    events: list[dict[str, Any]] = field(default_factory=list)
    unsound: int = 0

    @property
    def epochs(self) -> Epochs:
        """Return the epochs of each piece; an epoch that was trained again replaces the first."""
        found: dict[str, dict[int, Mapping[str, Any]]] = {}
        for event in self.events:
            if event["event"] == "epoch":
                found.setdefault(event["piece"], {})[event["epoch"]] = event
        return found


class EventsReader:
    """Reads the events of one run from S3, each part once, in order."""

    def __init__(self, cloud: Cloud, run_id: str) -> None:
        self._objects, self._run_id = cloud.objects, run_id
        self._parts, self._reader = PartReader(cloud.objects), EventReader()
        self._raw = b""  # that was read and not returned

    def read_new(self) -> RunEvents:
        """Return what came since the last call, of every attempt that the run's record names.

        Raises UsageError if there is no such run. What was read before another error comes with the next
        call.
        """
        record, _ = read_record(self._objects, self._run_id)
        for keys in record.all_nodes:
            self._raw += self._parts.read_new(keys.metrics)
        raw, self._raw = self._raw, b""
        return RunEvents(
            raw=raw, events=list(self._reader.read(raw.splitlines())), unsound=self._reader.unsound
        )


def read_events(cloud: Cloud, run_id: str) -> RunEvents:
    """Return the events so far of every attempt that the run's record names. Raises UsageError if there is no
    such run.
    """
    return EventsReader(cloud, run_id).read_new()
