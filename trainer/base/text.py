"""Escape untrusted texts (of nodes, files and AWS) for a terminal. The only module that does."""

from __future__ import annotations

import unicodedata


def printable(text: str) -> str:
    """Escape control characters, bidirectional marks and lone surrogates.

    Line ends and tabs stay.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(letter if letter in "\n\t" or not _obeyed(letter) else _escaped(letter) for letter in text)


def _obeyed(letter: str) -> bool:
    return unicodedata.category(letter) in ("Cc", "Cf", "Cs", "Zl", "Zp")


def _escaped(letter: str) -> str:
    return (
        letter.encode("unicode_escape", errors="backslashreplace").decode()
        if letter > "\x7f"
        else f"\\x{ord(letter):02x}"
    )
