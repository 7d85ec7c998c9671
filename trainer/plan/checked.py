"""A JSON value from anywhere, taken apart with type and bounds checked. Every error is a ValueError that names the place."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

LARGEST_NUMBER = 1 << 53
LONGEST_TEXT = 300
_SHA256 = re.compile(r"[0-9a-f]{64}")


class Checked:
    """A value and the place it has: `plan.symbols.AAA.bars`."""

    def __init__(self, value: Any, name: str) -> None:
        self._value, self.name = value, name

    def table(self, keys: Sequence[str]) -> dict[str, Checked]:
        """Return the values of an object that has just these keys."""
        parts = self.entries()
        if parts.keys() != set(keys):
            other = sorted(parts.keys() ^ set(keys))
            raise ValueError(f"{self.name} has {'no' if other[0] in keys else 'an unknown'} {other[0]!r}")
        return parts

    def entries(self) -> dict[str, Checked]:
        """Return the values of an object by its keys, whatever they are."""
        if not isinstance(self._value, dict):
            raise ValueError(f"{self.name} is no object")
        for key in self._value:
            if not key or len(key) > LONGEST_TEXT:
                raise ValueError(f"{self.name} has a key of {len(key)} characters")
        return {key: Checked(value, f"{self.name}.{key}") for key, value in self._value.items()}

    def items(self, *, least: int = 0) -> list[Checked]:
        """Return the values of a list."""
        if not isinstance(self._value, list) or len(self._value) < least:
            raise ValueError(f"{self.name} is no list" + (f" of {least} or more" if least else ""))
        return [Checked(value, f"{self.name}[{number}]") for number, value in enumerate(self._value)]

    def number(self, *, least: int = 0, most: int = LARGEST_NUMBER) -> int:
        """Return a whole number within the bounds, both included."""
        if type(self._value) is not int or not least <= self._value <= most:
            raise ValueError(f"{self.name} is {str(self._value)[:40]!r}, not a whole number from {least} to {most}")
        return self._value

    def range(self, *, least: int, most: int) -> tuple[int, int]:
        """Return [start, stop] with least <= start <= stop <= most."""
        parts = self.items(least=2)
        if len(parts) != 2:
            raise ValueError(f"{self.name} is no [start, stop]")
        start = parts[0].number(least=least, most=most)
        return start, parts[1].number(least=start, most=most)

    def text(self, *, longest: int = LONGEST_TEXT) -> str:
        """Return a text."""
        if not isinstance(self._value, str) or len(self._value) > longest:
            raise ValueError(f"{self.name} is no text of {longest} characters at most")
        return self._value

    def file_name(self) -> str:
        """Return a text that names a file, and no folder."""
        name = self.text()
        if not name or name in (".", "..") or "/" in name or "\\" in name or "\0" in name:
            raise ValueError(f"{self.name} is {name!r}, no name of a file")
        return name

    def sha256(self) -> str:
        """Return a hash in hexadecimal digits."""
        if not _SHA256.fullmatch(self.text()):
            raise ValueError(f"{self.name} is no sha256")
        return self.text()

    def choice(self, choices: Sequence[str]) -> str:
        """Return one of some texts."""
        if self.text() not in choices:
            raise ValueError(f"{self.name} is {self.text()!r}, not one of {', '.join(choices)}")
        return self.text()

    def flag(self) -> bool:
        """Return true or false."""
        if not isinstance(self._value, bool):
            raise ValueError(f"{self.name} is neither true nor false")
        return self._value

    def plain(self) -> Any:
        """Return a setting's value: text, number, true or false, or a list of texts."""
        if isinstance(self._value, list):
            return [item.text() for item in self.items()]
        if isinstance(self._value, str):
            return self.text()
        if not isinstance(self._value, (bool, int, float)):
            raise ValueError(f"{self.name} is no setting")
        return self._value
