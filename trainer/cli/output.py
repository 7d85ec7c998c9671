"""Text of the command line: tables, durations, dollars, and one live line on a terminal. Never data on stdout."""

from __future__ import annotations

import json
import shutil
import sys
import time
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

from trainer import environment

QUIET_SECONDS = 10.0  # without a terminal, updates are printed this often
BOLD, RED = "1", "31"


def mayfly() -> str:
    """Return the command as this shell can run it: `mayfly` where it is on PATH, else its place beside this Python."""
    if shutil.which("mayfly"):
        return "mayfly"
    beside = Path(sys.executable).with_name("mayfly")
    if not beside.exists():
        return "python -m trainer.cli.main"
    here = Path.cwd()
    return str(beside.relative_to(here)) if beside.is_relative_to(here) else str(beside)


def printable(text: str) -> str:
    """Escape what a terminal obeys instead of showing: control characters, bidirectional marks and lone surrogates.

    Line ends and tabs stay. Texts come from nodes, files and AWS; this is the one place where they are made harmless.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(letter if letter in "\n\t" or not _obeyed(letter) else _escaped(letter) for letter in text)


def one_line(text: str) -> str:
    """Return a text as one line that a terminal only shows."""
    return printable(text).replace("\n", " ")


def say(*lines: str) -> None:
    """Print lines to stdout."""
    for line in lines:
        print(one_line(line))


def say_json(value: object) -> None:
    """Print a JSON document to stdout: it is ASCII, with every control character escaped."""
    print(json.dumps(value, indent=2).replace("\x7f", "\\u007f"))


def say_text(text: str) -> None:
    """Print a text of many lines to stdout, as it is but for what a terminal obeys."""
    sys.stdout.write(printable(text))
    sys.stdout.flush()


def warn(line: str) -> None:
    """Print a line to stderr."""
    print(one_line(line), file=sys.stderr)


def ask(question: str) -> str:
    """Print a question to stderr and return the line that is typed, without its end."""
    print(one_line(question), end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip()


def _obeyed(letter: str) -> bool:
    return unicodedata.category(letter) in ("Cc", "Cf", "Cs", "Zl", "Zp")


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape", errors="backslashreplace").decode() if letter > "\x7f" else f"\\x{ord(letter):02x}"


class Console:
    """Messages on stderr: permanent lines, and on a terminal one line that updates in place."""

    def __init__(self, stream: TextIO | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.stream = stream or sys.stderr
        self.live = self.stream.isatty() and not environment.terminal_is_dumb()
        self.colour = self.live and not environment.colours_refused()
        self._clock = clock
        self._on_screen = False
        self._printed_at = float("-inf")

    def line(self, text: str = "", style: str = "") -> None:
        """Print a line that stays."""
        self._clear()
        print(self.styled(one_line(text), style), file=self.stream, flush=True)
        self._printed_at = self._clock()

    def update(self, text: str) -> None:
        """Show progress: in place on a terminal; else as a line, at most every QUIET_SECONDS."""
        if self.live:
            self._clear()
            self.stream.write(one_line(text)[: shutil.get_terminal_size().columns - 1])
            self.stream.flush()
            self._on_screen = True
        elif self._clock() - self._printed_at >= QUIET_SECONDS:
            self.line(text)

    def styled(self, text: str, style: str) -> str:
        """Return the text in a style, plain where colour is unwanted."""
        return f"\033[{style}m{text}\033[0m" if style and self.colour else text

    def close(self) -> None:
        """Remove the live line, so that the next output begins on an empty one."""
        self._clear()
        self.stream.flush()

    def _clear(self) -> None:
        if self._on_screen:
            self.stream.write("\r\033[K")
            self._on_screen = False


def bars_are(synthetic: bool | None) -> str:
    """Return the word for bars, so that generated ones never pass for a market's."""
    return "-" if synthetic is None else "SYNTHETIC" if synthetic else "real"


def table(rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> list[str]:
    """Return rows as aligned lines; the columns in `right` are aligned to the right."""
    rows = [[one_line(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))] if rows else []
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def duration(seconds: float) -> str:
    """Write seconds for people: 45 s, 2m05s, 1h08m."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


def money(dollars: float) -> str:
    """Write dollars for people: cents, and more digits below ten cents."""
    return f"${dollars:.2f}" if dollars >= 0.1 or dollars == 0 else f"${dollars:.4f}"
