"""The run record as JSON, and other documents of the control plane: frozen dataclasses, read strictly.

A document of another format, with a field more or less, or with a malformed value is refused.
"""

from __future__ import annotations

import dataclasses
import json
import re
import types
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from trainer.aws.place import PLACES
from trainer.base.instants import from_iso, iso
from trainer.base.strict_json import MOST_NUMBER, MOST_WHOLE, Fields, Unsound, read_object
from trainer.runs.lease import LONGEST_BOOT
from trainer.runs.record import RUN_ID, WORK, RunRecord

MOST_ATTEMPTS = 1_000
MOST_ANCESTORS = 1_000
MOST_QUEUE_SECONDS = 86_400.0  # a job may not wait as long
MOST_RECORD_BYTES = 16 * 1024 * 1024
# AIDA...; AROA...:<session name>, of 64 of these characters at most; a root user's is the account's id (IAM
# user guide, "Policy variables" and "STS AssumeRole", looked up 2026-11-22).
USER_ID = r"[A-Za-z0-9]{8,128}(:[\w+=,.@-]{1,64})?"


T = TypeVar("T")


def to_json(value: Any) -> bytes:
    """Write a record (or any frozen dataclass of such values) as JSON, keys in the order of the fields."""
    return json.dumps(_plain(value), indent=1).encode()


def record_from_json(body: bytes) -> RunRecord:
    """Read a run record. Raises Unsound for another format, a missing field, or a malformed value."""
    record = read_value(body, RunRecord, name="the run record", most_bytes=MOST_RECORD_BYTES)
    _check_consistency(record)
    return record


def read_value(body: bytes, cls: type[T], *, name: str, most_bytes: int) -> T:
    """Read a document of the control plane: a frozen dataclass whose `format` has this version's as default.

    Raises Unsound.
    """
    values = read_object(body, most_bytes=most_bytes, name=name).values
    known = getattr(cls, "format", None)
    if values.get("format") != known:
        raise Unsound(f"{name} has format {str(values.get('format'))[:40]}, this version reads {known}")
    value = _built(values, cls, name)
    assert isinstance(value, cls)
    return value


def _check_consistency(record: RunRecord) -> None:
    """Raise Unsound if the parts of a record are inconsistent, so that decisions on it can't fail."""
    if record.place not in PLACES:
        raise Unsound("the run record has no place that this version knows")
    if record.work == "prepare":  # whose files join a data set
        data = Fields(record.job, "the run record's job").table("data")
        data.text("set")
        data.text("stale")
    launches = [launch for attempt in record.attempts for launch in attempt.launches]
    numbers = [attempt.number for attempt in record.attempts]
    wrong = {
        "no rung": not record.ladder and record.has_instances,
        "no user of its machine": not record.has_instances and not re.fullmatch(USER_ID, record.user_id),
        "a rung without a price": any(rung.on_demand_usd_per_hour <= 0 for rung in record.ladder),
        "an invalid boot allowance": not all(
            0 < rung.boot_seconds <= LONGEST_BOOT.total_seconds() for rung in record.ladder
        ),
        "a launch on a rung that is not on its ladder": any(
            launch.rung >= len(record.ladder) for launch in launches
        ),
        "two launches of one token": len({launch.token for launch in launches}) < len(launches),
        "an invalid waiting line": record.queue_seconds > MOST_QUEUE_SECONDS
        or any(
            not (queue.since <= queue.next_at <= queue.until and queue.first <= len(attempt.launches))
            for attempt in record.attempts
            if (queue := attempt.queue) and attempt.launches
        )
        or any(attempt.queue and not attempt.launches for attempt in record.attempts),
        "two pieces of one name": len({piece.piece for piece in record.pieces}) < len(record.pieces),
        "attempts out of order": (
            numbers != sorted({number for number in numbers if 0 < number <= MOST_ATTEMPTS})
        ),
        "an earlier attempt without an end": any(item.ended_at is None for item in record.attempts[:-1]),
        "no attempt to recover from": record.state == "recovering" and not record.lost,
        "an ended attempt although it goes on": (
            record.state in ("starting", "running")
            and record.attempt is not None
            and record.attempt in record.lost
        ),
        "no instance although it is running": (
            record.state == "running"
            and record.has_instances
            and (record.last_launch is None or record.last_launch.outcome != "created")
        ),
        "no outcome although it has ended": record.state in ("ending", "closed") and record.outcome is None,
        "no time of its end": record.state == "ending" and record.ending_at is None,
        "an invalid parent": bool(record.parent) != bool(record.parent_counts)
        or bool(record.ancestors and not record.parent)
        or len(record.ancestors) > MOST_ANCESTORS
        or len(set(record.lineage)) < len(record.lineage)
        or not all(re.fullmatch(RUN_ID, name) for name in record.lineage[1:]),
        "an invalid kind of work": not re.fullmatch(WORK, record.work),
    }
    for what, is_so in wrong.items():
        if is_so:
            raise Unsound(f"the run record has {what}")


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return iso(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: _plain(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


Reader = Callable[[Any, str], Any]  # (a value of JSON, its name) -> a value of one type


@cache
def _reader(hint: Any) -> Reader:
    """Return the function that reads one type; working types out takes longer than reading a value."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (types.UnionType, Union):
        read = _reader(next(arg for arg in args if arg is not type(None)))
        return lambda value, name: None if value is None else read(value, name)
    if origin is tuple:
        part = _reader(args[0])
        return _checked(
            lambda value: isinstance(value, list),
            lambda value, name: tuple(part(item, name) for item in value),
        )
    if origin is dict and args[1] is not Any:
        item = _reader(args[1])
        return _checked(
            lambda value: isinstance(value, dict),
            lambda value, name: {key: item(value[key], f"{name}.{key[:80]}") for key in value},
        )
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _checked(lambda value: isinstance(value, dict), lambda value, name: _built(value, hint, name))
    if hint is datetime:
        return _checked(lambda value: isinstance(value, str), lambda value, name: from_iso(value))
    if hint is float:
        return _checked(
            lambda value: type(value) in (int, float) and 0 <= value <= MOST_NUMBER,
            lambda value, name: float(value),
        )
    fits: dict[Any, Callable[[Any], bool]] = {
        int: lambda value: type(value) is int and 0 <= value <= MOST_WHOLE,
        Literal: lambda value: value in args,
        bool: lambda value: isinstance(value, bool),
        str: lambda value: isinstance(value, str),
        dict: lambda value: isinstance(value, dict),
    }
    return _checked(fits.get(origin or hint, lambda value: False), lambda value, name: value)


def _checked(fits: Callable[[Any], bool], read: Reader) -> Reader:
    def checked(value: Any, name: str) -> Any:
        if not fits(value):
            raise Unsound(f"{name} is {str(value)[:80]!r}, which is not a valid value")
        return read(value, name)

    return checked


@cache
def _readers_of(cls: Any) -> dict[str, Reader]:
    """Return how to read each field of a class."""
    return {key: _reader(hint) for key, hint in get_type_hints(cls).items()}


def _built(values: Mapping[str, Any], cls: Any, name: str) -> Any:
    """Build a dataclass from JSON that has its fields and no other."""
    readers = _readers_of(cls)
    if others := sorted(values.keys() ^ readers.keys()):
        raise Unsound(f"{name} has {'no' if others[0] in readers else 'an unknown'} field {others[0][:80]!r}")
    return cls(**{key: readers[key](item, f"{name}.{key}") for key, item in values.items()})
