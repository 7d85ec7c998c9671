"""The rule for symbols. A symbol names files and objects, so it is one part of a path that any file system takes.

The one place of the rule: data files, jobs, plans and cards ask it. Standard library only.
"""

from __future__ import annotations

MOST_BYTES = 100  # in UTF-8: a model's name has its family, target, timeframe, fold and seed besides, and 200 in all
RULE = f"a symbol is 1 to {MOST_BYTES} printable characters, none of them / \\ or a comma, and begins with none of . - ~"


def flaw(symbol: str) -> str:
    """Return what keeps a text from being a symbol, '' where nothing does."""
    if not symbol:
        return "it is empty"
    if not symbol.isprintable():
        return "it has a character that can't be printed"
    if len(symbol.encode()) > MOST_BYTES:
        return f"it has {len(symbol.encode())} bytes"
    if set(symbol) & set("/\\,"):
        return "it has a slash or a comma"
    if symbol[0] in ".-~":
        return f"it begins with {symbol[0]}"
    if symbol != symbol.strip():
        return "it has a blank at an end"
    return ""


def brief(symbol: str) -> str:
    """Write a text that is no symbol as an error names it."""
    return repr(symbol if len(symbol) <= 40 else f"{symbol[:37]}...")
