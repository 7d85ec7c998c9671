"""Read JSON that somebody else wrote: bounded in size and depth, and strict about types and ranges.

What a node writes is hostile until this module has read it. Every violation is one `Unsound`. Texts may hold control
characters: they are escaped where they are printed (`trainer.cli.output`). Standard library only, and nothing else of ours:
the sweeper's zip carries this file.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterator, Mapping
from datetime import datetime, timezone
from typing import Any

MOST_DEPTH = 16  # of lists and objects in each other; a model's metrics reach 8
MOST_TEXT = 4_000  # characters of a text that people read
MOST_NAME = 200  # characters of a name: a symbol, a type, a phase
MOST_NUMBER = 1e18  # of numbers with a fraction; whole ones may be nanoseconds since 1970
MOST_WHOLE = 2**63 - 1
YEARS = range(2000, 2200)  # of instants: sums with any duration of ours stay dates
_REQUIRED: Any = object()


class Unsound(ValueError):
    """A document that nobody of ours wrote, and the first thing that is wrong with it."""


def instant(text: str) -> datetime:
    """Read an ISO 8601 instant, in UTC. Raises Unsound without a zone, or outside YEARS."""
    try:
        read = datetime.fromisoformat(text.replace("Z", "+00:00"))
        utc = read.astimezone(timezone.utc)
    except (ValueError, OverflowError) as error:
        raise Unsound(f"{text[:40]!r} is no instant") from error
    if read.tzinfo is None:
        raise Unsound(f"{text[:40]!r} has no time zone")
    if utc.year not in YEARS:
        raise Unsound(f"{text[:40]!r} is not between {YEARS[0]} and {YEARS[-1]}")
    return utc


def read_object(body: bytes, *, most_bytes: int, name: str) -> Fields:
    """Read a JSON object. Raises Unsound where it is larger, deeper or stranger than one of ours can be."""
    if len(body) > most_bytes:
        raise Unsound(f"{name} has more than {most_bytes:,} bytes")
    try:
        value = json.loads(body.decode(), parse_constant=_no_number)
    except Unsound:
        raise
    except (ValueError, RecursionError) as error:
        raise Unsound(f"{name} is not JSON ({type(error).__name__})") from error
    check_values(value, name)
    if not isinstance(value, dict):
        raise Unsound(f"{name} is no JSON object")
    return Fields(value, name)


def check_values(value: Any, name: str) -> None:
    """Raise Unsound for a JSON value that is too deep, or that holds a number or a text that no writer of ours makes."""
    waiting = [(value, 1)]
    while waiting:
        item, depth = waiting.pop()
        if depth > MOST_DEPTH:
            raise Unsound(f"{name} is more than {MOST_DEPTH} levels deep")
        if isinstance(item, dict):
            waiting += [(part, depth + 1) for pair in item.items() for part in pair]
        elif isinstance(item, list):
            waiting += [(part, depth + 1) for part in item]
        elif isinstance(item, str):
            if any("\ud800" <= letter <= "\udfff" for letter in item):
                raise Unsound(f"{name} has a text that is not Unicode")
        elif isinstance(item, float):
            if not abs(item) <= MOST_NUMBER:
                raise Unsound(f"{name} has the number {item!r}")
        elif isinstance(item, int) and abs(item) > MOST_WHOLE:
            raise Unsound(f"{name} has a number of {len(str(item))} digits")


class Fields:
    """The fields of a JSON object, each read as one type. A missing field, or null, is its default. Raises Unsound."""

    def __init__(self, values: Mapping[str, Any], name: str) -> None:
        self.values, self.name = values, name

    def text(self, key: str, default: str = _REQUIRED, *, most: int = MOST_NAME, pattern: str = "") -> str:
        """Return a text of at most `most` characters that matches the pattern as a whole."""
        value = self._of(key, str, "a text", default)
        if len(value) > most:
            raise self._wrong(key, f"longer than {most} characters")
        if pattern and value and not re.fullmatch(pattern, value):
            raise self._wrong(key, repr(value[:80]))
        return str(value)

    def choice(self, key: str, choices: Collection[str], default: str = _REQUIRED) -> str:
        """Return a text that is one of the choices."""
        value = self.text(key, default)
        if value not in choices:
            raise self._wrong(key, repr(value[:80]))
        return value

    def whole(self, key: str, default: int = _REQUIRED, *, least: int = 0, most: int = MOST_WHOLE) -> int:
        """Return a whole number between `least` and `most`."""
        value = self._of(key, int, "a whole number", default)
        if isinstance(value, bool) or not least <= value <= most:
            raise self._wrong(key, f"{value!r}, outside {least} to {most}")
        return int(value)

    def number(self, key: str, *, least: float = -MOST_NUMBER, most: float = MOST_NUMBER) -> float | None:
        """Return a number, or None where there is none."""
        value = self._of(key, (int, float), "a number", None)
        if value is None:
            return None
        if isinstance(value, bool) or not (least <= value <= most and math.isfinite(value)):
            raise self._wrong(key, f"{value!r}, outside {least:g} to {most:g}")
        return float(value)

    def texts(self, key: str, *, most: int) -> list[str]:
        """Return a list of at most so many texts."""
        value = self._of(key, list, "a list", [])
        if len(value) > most or not all(isinstance(item, str) and len(item) <= MOST_NAME for item in value):
            raise self._wrong(key, f"no list of at most {most} texts")
        return list(value)

    def truth(self, key: str) -> bool | None:
        """Return true or false, or None where there is neither."""
        value = self._of(key, bool, "true or false", None)
        return None if value is None else bool(value)

    def instant(self, key: str) -> datetime:
        """Return an instant in UTC."""
        text = self.text(key)
        try:
            return instant(text)
        except Unsound as error:
            raise self._wrong(key, f"none of ours: {error}") from error

    def instants(self, key: str, *, most: int) -> dict[str, datetime]:
        """Return name -> instant of an object; names without one are left out."""
        table = self.table(key, most=most)
        return {name: table.instant(name) for name, value in table.values.items() if value}

    def table(self, key: str, *, most: int = MOST_WHOLE) -> Fields:
        """Return the fields of an object with at most so many keys; an empty one where there is none."""
        value = self._of(key, dict, "an object", {})
        if len(value) > most or any(len(name) > MOST_NAME for name in value):
            raise self._wrong(key, f"larger than {most} names of {MOST_NAME} characters")
        return Fields(value, f"{self.name}.{key}")

    def tables(self, key: str, *, most: int) -> Iterator[tuple[str, Fields]]:
        """Yield name and fields of each object in an object."""
        table = self.table(key, most=most)
        for name in table.values:
            yield name, table.table(name)

    def rows(self, key: str, *, most: int) -> Iterator[Fields]:
        """Yield the fields of each object in a list of at most so many."""
        value = self._of(key, list, "a list", [])
        if len(value) > most:
            raise self._wrong(key, f"longer than {most} entries")
        for number, item in enumerate(value):
            if not isinstance(item, dict):
                raise self._wrong(key, "no list of objects")
            yield Fields(item, f"{self.name}.{key}[{number}]")

    def _of(self, key: str, kind: type | tuple[type, ...], words: str, default: Any) -> Any:
        value = self.values.get(key)
        if value is None:
            if default is _REQUIRED:
                raise Unsound(f"{self.name} has no {key}")
            return default
        if not isinstance(value, kind):
            raise self._wrong(key, f"not {words}")
        return value

    def _wrong(self, key: str, what: str) -> Unsound:
        return Unsound(f"{self.name}.{key[:80]} is {what}")


def _no_number(text: str) -> Any:
    raise Unsound(f"{text} is no number")
