"""Read untrusted JSON: bounded in size and depth, and strict about types and ranges.

Documents of a node, plans and cards are untrusted until this module has read them. Every violation raises
`Unsound`, which names the field. Texts may hold control characters: they are escaped when they are printed
(`trainer.cli.output`). Standard library only, and nothing else of ours: the sweeper's zip carries this file.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

MOST_VALUES = 8_000_000  # of a document: an empty list takes 60 bytes; a result has 4 million at most
MOST_DEPTH = 16  # of lists and objects in each other; a model's metrics reach 8
MOST_TEXT = 4_000  # characters of a text that people read
MOST_NAME = 255  # characters of a name: a symbol, a piece, a type, a phase; no file has a longer one
MOST_NUMBER = 1e18  # of numbers with a fraction; whole ones may be nanoseconds since 1970
MOST_WHOLE = 2**63 - 1
YEARS = range(2000, 2200)  # of instants: sums with any duration of ours stay dates
YEARS_OF_BARS = range(1800, 2200)
_SHA256 = "[0-9a-f]{64}"
_REQUIRED: Any = object()


class Unsound(ValueError):
    """A malformed document, with its first fault."""


def instant(text: str, *, years: range = YEARS) -> datetime:
    """Read an ISO 8601 instant, in UTC. Raises Unsound without a zone, or outside `years`."""
    try:
        read = datetime.fromisoformat(text.replace("Z", "+00:00"))
        utc = read.astimezone(timezone.utc)
    except (ValueError, OverflowError) as error:
        raise Unsound(f"{text[:40]!r} is not an instant") from error
    if read.tzinfo is None:
        raise Unsound(f"{text[:40]!r} has no time zone")
    if utc.year not in years:
        raise Unsound(f"{text[:40]!r} is not between {years[0]} and {years[-1]}")
    return utc


def read_object(
    body: bytes,
    *,
    most_bytes: int,
    name: str,
    most_number: float = MOST_NUMBER,
    most_values: int = MOST_VALUES,
) -> Fields:
    """Read a JSON object. Raises Unsound if it is too large, too deep or malformed."""
    if len(body) > most_bytes:
        raise Unsound(f"{name} has {len(body):,} bytes, more than {most_bytes:,} bytes")
    if sum(map(body.count, (b",", b"[", b"{"))) > most_values:  # more, with those in texts
        raise Unsound(f"{name} has more than {most_values:,} values")
    try:
        value = json.loads(body.decode(), parse_constant=_no_number)
    except Unsound:
        raise
    except (ValueError, RecursionError) as error:
        raise Unsound(f"{name} is not JSON ({type(error).__name__})") from error
    check_values(value, name, most_number)
    return Value(value, name).fields()


def check_values(value: Any, name: str, most_number: float = MOST_NUMBER) -> None:
    """Raise Unsound for a JSON value that is too deep, or that holds a number or a text out of bounds."""
    waiting: list[tuple[Collection[Any], int]] = [([value], 1)]
    while waiting:
        items, depth = waiting.pop()
        if items and depth > MOST_DEPTH:
            raise Unsound(f"{name} is more than {MOST_DEPTH} levels deep")
        for item in items:
            kind = type(item)  # JSON has no other types, and this takes half of the time of reading a record
            if kind is str:
                if not item.isascii() and any("\ud800" <= letter <= "\udfff" for letter in item):
                    raise Unsound(f"{name} has a text that is not Unicode")
            elif not item and (kind is dict or kind is list):
                continue
            elif kind is dict:
                waiting += ((item.keys(), depth + 1), (item.values(), depth + 1))
            elif kind is list:
                waiting.append((item, depth + 1))
            elif kind is float:
                if not abs(item) <= most_number:
                    raise Unsound(f"{name} has the number {item!r}")
            elif kind is int and abs(item) > MOST_WHOLE:
                raise Unsound(f"{name} has a number of {len(str(item))} digits")


class Value:
    """A JSON value and its place, such as `the plan.symbols.AAA.bars`, read as one type. Raises Unsound for
    another.
    """

    def __init__(self, value: Any, name: str) -> None:
        self.value, self.name = value, name

    def text(self, *, most: int = MOST_NAME, pattern: str = "") -> str:
        """Return a text of at most `most` characters that is empty or matches the pattern as a whole."""
        text = str(self._of(str, "a text"))
        if len(text) > most:
            raise self._wrong(f"longer than {most} characters")
        if pattern and text and not re.fullmatch(pattern, text):
            raise self._wrong(repr(text[:80]))
        return text

    def choice(self, choices: Collection[str]) -> str:
        """Return a text that is one of the choices."""
        text = self.text()
        if text not in choices:
            raise self._wrong(f"{text[:80]!r}, not one of {', '.join(sorted(choices))}"[:400])
        return text

    def sha256(self) -> str:
        """Return a hash in hexadecimal digits."""
        text = self.text()
        if not re.fullmatch(_SHA256, text):
            raise self._wrong(f"{text[:80]!r}, no sha256")
        return text

    def file_name(self) -> str:
        """Return a text that names a file, and no folder."""
        name = self.text(most=255)
        if not name or name in (".", "..") or set(name) & set("/\\\0"):
            raise self._wrong(f"{name[:80]!r}, no name of a file")
        return name

    def whole(self, *, least: int = 0, most: int = MOST_WHOLE) -> int:
        """Return a whole number between `least` and `most`, both included."""
        number = self._of(int, "a whole number")
        if not least <= number <= most:
            raise self._wrong(f"{number!r}, outside {least} to {most}")
        return int(number)

    def number(self, *, least: float = -MOST_NUMBER, most: float = MOST_NUMBER) -> float:
        """Return a number between `least` and `most`, both included."""
        number = self._of((int, float), "a number")
        if not (least <= number <= most and math.isfinite(number)):
            raise self._wrong(f"{number!r}, outside {least:g} to {most:g}")
        return float(number)

    def finite_or_none(self) -> float | None:
        """Return a number of any size, or None for null."""
        most = sys.float_info.max
        return None if self.value is None else self.number(least=-most, most=most)

    def truth(self) -> bool:
        """Return true or false."""
        return bool(self._of(bool, "true or false"))

    def instant(self) -> datetime:
        """Return an instant in UTC."""
        try:
            return instant(self.text())
        except Unsound as error:
            raise self._wrong(f"none of ours: {error}") from error

    def plain(self, *, most: int = MOST_TEXT) -> Any:
        """Return a setting's value: a text of at most so many characters, a number, true or false, or a list
        of these.
        """
        if isinstance(self.value, list):
            return [
                item.plain(most=most) if not isinstance(item.value, list) else item.text()
                for item in self.items()
            ]
        if isinstance(self.value, str):
            return self.text(most=most)
        return self._of((bool, int, float), "a setting")

    def items(self, *, least: int = 0, most: int = MOST_WHOLE) -> list[Value]:
        """Return the values of a list of `least` to `most`."""
        entries = self._of(list, "a list")
        if not least <= len(entries) <= most:
            raise self._wrong(f"a list of {len(entries)}, not of {least} to {most}")
        return [Value(value, f"{self.name}[{number}]") for number, value in enumerate(entries)]

    def span(self, *, least: int, most: int) -> tuple[int, int]:
        """Return [start, stop] with least <= start <= stop <= most."""
        first, last = self.items(least=2, most=2)
        start = first.whole(least=least, most=most)
        return start, last.whole(least=start, most=most)

    def fields(self, *, most: int = MOST_WHOLE) -> Fields:
        """Return the fields of an object with at most so many keys."""
        entries = self._of(dict, "an object")
        if len(entries) > most or any(len(key) > MOST_NAME for key in entries):
            raise self._wrong(f"larger than {most} names of {MOST_NAME} characters")
        return Fields(entries, self.name)

    def _of(self, kind: type | tuple[type, ...], words: str) -> Any:
        kinds = kind if isinstance(kind, tuple) else (kind,)
        if not isinstance(self.value, kind) or (isinstance(self.value, bool) and bool not in kinds):
            raise self._wrong(f"not {words}")
        return self.value

    def _wrong(self, what: str) -> Unsound:
        return Unsound(f"{self.name} is {what}")


class Fields:
    """The fields of a JSON object, each read as one type. A missing field, or null, is its default. Raises
    Unsound.
    """

    def __init__(self, values: Mapping[str, Any], name: str) -> None:
        self.values, self.name = values, name

    def value(self, key: str, default: Any = _REQUIRED) -> Value:
        """Return a field as it stands."""
        value = self.values.get(key)
        if value is None:
            if default is _REQUIRED:
                raise Unsound(f"{self.name} has no {key}")
            value = default
        return Value(value, f"{self.name}.{key[:80]}")

    def entries(self) -> dict[str, Value]:
        """Return every field by its name, whatever that is. Raises Unsound for an empty name."""
        if "" in self.values:
            raise Unsound(f"{self.name} has a field without a name")
        return {key: Value(value, f"{self.name}.{key[:80]}") for key, value in self.values.items()}

    def exactly(self, keys: Sequence[str]) -> dict[str, Value]:
        """Return the fields of an object that has just these keys."""
        if others := sorted(self.values.keys() ^ set(keys)):
            raise Unsound(f"{self.name} has {'no' if others[0] in keys else 'an unknown'} {others[0][:80]!r}")
        return self.entries()

    def text(self, key: str, default: str = _REQUIRED, *, most: int = MOST_NAME, pattern: str = "") -> str:
        """Return a text, see `Value.text`."""
        return self.value(key, default).text(most=most, pattern=pattern)

    def choice(self, key: str, choices: Collection[str], default: str = _REQUIRED) -> str:
        """Return a text that is one of the choices."""
        return self.value(key, default).choice(choices)

    def whole(self, key: str, default: int = _REQUIRED, *, least: int = 0, most: int = MOST_WHOLE) -> int:
        """Return a whole number between `least` and `most`."""
        return self.value(key, default).whole(least=least, most=most)

    def number(self, key: str, *, least: float = -MOST_NUMBER, most: float = MOST_NUMBER) -> float | None:
        """Return a number, or None if there is none."""
        return None if self.values.get(key) is None else self.value(key).number(least=least, most=most)

    def truth(self, key: str) -> bool | None:
        """Return true or false, or None if there is neither."""
        return None if self.values.get(key) is None else self.value(key).truth()

    def instant(self, key: str) -> datetime:
        """Return an instant in UTC."""
        return self.value(key).instant()

    def instants(self, key: str, *, most: int) -> dict[str, datetime]:
        """Return name -> instant of an object; names without one are left out."""
        table = self.table(key, most=most)
        return {name: table.instant(name) for name, value in table.values.items() if value}

    def table(self, key: str, *, most: int = MOST_WHOLE) -> Fields:
        """Return the fields of an object with at most so many keys; an empty one if there is none."""
        return self.value(key, {}).fields(most=most)

    def tables(self, key: str, *, most: int) -> Iterator[tuple[str, Fields]]:
        """Yield name and fields of each object in an object."""
        table = self.table(key, most=most)
        for name in table.values:
            yield name, table.table(name)

    def rows(self, key: str, *, most: int) -> Iterator[Fields]:
        """Yield the fields of each object in a list of at most so many."""
        for item in self.value(key, []).items(most=most):
            yield item.fields()


def _no_number(text: str) -> Any:
    raise Unsound(f"{text} is not a number")
