"""The rules for the names that users bring: symbols, candle files (one part of a path that any file system
takes) and paths.

The one place of the rules: data files, jobs, plans, cards, scripts and backups ask it. Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterable

MOST_BYTES = 100  # in UTF-8: a model's name has family, target, timeframe, fold and seed besides, 200 in all
MOST_NAME_BYTES = 200  # of a file's name: file systems take 255, and a file being written has a longer name
MOST_CANDLE_FILES = 50_000  # that a training reads: plans, results and receipts list them
MOST_SERIES = 5_000  # symbols of one model, which its card lists
MOST_PATH_BYTES, MOST_PARTS = 240, 12  # of a relative path, and its folders with the name
RULE = (
    f"a symbol is 1 to {MOST_BYTES} bytes of printable characters, none of them / \\ or a comma, and begins"
    " with none of . - ~"
)


def tidy(symbol: str) -> str:
    """Return the name under which a symbol trains: BTC-USD for BTC/USD, the commonest spelling, which is no
    part of a path.
    """
    parts = symbol.split("/")
    return "-".join(parts) if len(parts) > 1 and all(part[:1].isalnum() for part in parts) else symbol


def flaw(symbol: str) -> str:
    """Return why a text can't be a symbol, '' if it can."""
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
        return "it begins or ends with a space"
    return ""


def file_flaw(name: str) -> str:
    """Return why a text can't be the name of a candle file, '' if it can."""
    if not name.isprintable() or len(name.encode(errors="replace")) > MOST_NAME_BYTES:
        return f"names are UTF-8, printable, and have at most {MOST_NAME_BYTES} bytes"
    return "it has a slash, or begins with a dot" if set(name) & set("/\\") or name[:1] in ("", ".") else ""


def quoted(symbol: str) -> str:
    """Return an invalid symbol as errors show it."""
    return repr(symbol if len(symbol) <= 40 else f"{symbol[:37]}...")


def folders_of(paths: Iterable[str]) -> set[str]:
    """Return every folder of relative paths: a and a/b of a/b/c."""
    found: set[str] = set()
    for path in paths:
        folder = path.rpartition("/")[0]
        while folder and folder not in found:
            found.add(folder)
            folder = folder.rpartition("/")[0]
    return found


def path_flaw(path: str, *, most_bytes: int = MOST_PATH_BYTES, hidden: bool = False) -> str:
    """Return why a text can't be the relative path of a file below a folder, '' if it can.

    `hidden`: names may begin with a dot, as PyTorch's own in a sharded checkpoint do.
    """
    parts = path.split("/")
    if not path.isprintable() or "\\" in path:
        return "its name has a character that can't be printed, or a backslash"
    if len(path.encode(errors="replace")) > most_bytes or len(parts) > MOST_PARTS:
        return f"its name has more than {most_bytes} bytes or {MOST_PARTS} folders"
    if not all(parts):
        return "its name has an empty part"
    dotted = any(part in (".", "..") if hidden else part.startswith(".") for part in parts)
    return "its name, or its folder's, begins with a dot" if dotted else ""
