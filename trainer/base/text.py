"""Texts for people: escape those of nodes, files and AWS for a terminal, and shorten lists of names.

No other module escapes.
"""

from __future__ import annotations

import io
import unicodedata
from collections.abc import Sequence


def printable(text: str) -> str:
    """Escape control characters, bidirectional marks and lone surrogates.

    Line ends and tabs stay.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(letter if letter in "\n\t" or not _obeyed(letter) else _escaped(letter) for letter in text)


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: `1 model`, `2,000 models`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def lines_of(text: str) -> list[str]:
    """Return the lines of a text with their ends. Only a line feed ends one: `str.splitlines` also splits at
    separators that are printed escaped, within a line.
    """
    return io.StringIO(text).readlines()


def some_of(names: Sequence[str], most: int) -> str:
    """Return the first names as text, such as `A, B and 3 more`."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _obeyed(letter: str) -> bool:
    return unicodedata.category(letter) in ("Cc", "Cf", "Cs", "Zl", "Zp")


def _escaped(letter: str) -> str:
    return (
        letter.encode("unicode_escape", errors="backslashreplace").decode()
        if letter > "\x7f"
        else f"\\x{ord(letter):02x}"
    )
