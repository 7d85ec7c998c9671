"""Plain text of the command line: lines on stdout and stderr, escapes, durations, dollars. rich is
`trainer.cli.terminal`'s.
"""

from __future__ import annotations

import argparse
import json
import logging
import shlex
import shutil
import sys
import textwrap
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from trainer.base.errors import TrainerError, UsageError
from trainer.base.text import counted as counted
from trainer.base.text import printable


def mayfly() -> str:
    """Return the command for this shell: `mayfly` if it is on PATH, else its path beside this Python."""
    if shutil.which("mayfly"):
        return "mayfly"
    beside = Path(sys.executable).with_name("mayfly")
    if not beside.exists():
        return "python -m trainer.cli.main"
    here = Path.cwd()
    return shlex.quote(str(beside.relative_to(here) if beside.is_relative_to(here) else beside))


def one_line(text: str) -> str:
    """Return a text as one line, with control characters escaped."""
    return printable(text).replace("\n", " ")


class LogLine(logging.Formatter):
    """A record of a library's log as one line, with control characters escaped."""

    def format(self, record: logging.LogRecord) -> str:
        return one_line(super().format(record))


def folded(line: str, stream: TextIO) -> str:
    """Wrap a line between words to the width of the terminal; without a terminal return it unchanged."""
    width = shutil.get_terminal_size().columns
    if not stream.isatty() or len(line) <= width:
        return line
    return textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False)


def say(*lines: str) -> None:
    """Print lines to stdout."""
    for line in lines:
        print(folded(one_line(line), sys.stdout))


def say_json(value: object) -> None:
    """Print a JSON document to stdout, in ASCII, with control characters escaped."""
    print(json.dumps(value, indent=2).replace("\x7f", "\\u007f"))


def say_text(text: str) -> None:
    """Print a text of several lines to stdout, with control characters escaped."""
    sys.stdout.write(printable(text))
    sys.stdout.flush()


def warn(line: str) -> None:
    """Print a line to stderr, unless its reader or terminal is gone, or its disk full."""
    with suppress(OSError):
        print(folded(one_line(line), sys.stderr), file=sys.stderr)


def lacks(problems: Mapping[str, TrainerError], *, as_json: bool) -> int:
    """Warn of what an answer lacks, unless its JSON says so; return the exit code of the first problem, 0
    without one.
    """
    for problem in problems.values() if not as_json else ():
        warn(f"warning: {problem}")
    return next((problem.exit_code for problem in problems.values()), 0)


def ask(question: str) -> str:
    """Print a question to stderr and return the answer without its line end."""
    print(one_line(question), end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip()


def agrees(question: str) -> bool:
    """Ask a question and return whether the answer is yes."""
    return ask(f"{question} [y/N] ").lower() in ("y", "yes")


def refuse_unasked(arguments: argparse.Namespace, what: str, *, do: str) -> None:
    """Raise UsageError if something needs a yes, and there is neither -y nor a terminal to ask on."""
    if arguments.yes or (sys.stdin.isatty() and sys.stderr.isatty() and not arguments.json):
        return
    why = "--json was given" if arguments.json else "there is no terminal to ask on"
    raise UsageError(f"{what} and was not confirmed", why=why, do=do)


def bars_are(synthetic: bool | None) -> str:
    """Return the label of the bars: generated ones are always marked as such."""
    return "-" if synthetic is None else "SYNTHETIC" if synthetic else "real"


def piece_noun(number: int, work: str) -> str:
    """Return what a run's pieces are: `model`; of another command `value`, or its name where it has one."""
    if work == "train":
        return "model"
    return work if number == 1 else "value"


def pieces_counted(number: int, work: str) -> str:
    """Return the number of a run's pieces with their noun."""
    return counted(number, piece_noun(number, work))


def duration(seconds: float) -> str:
    """Format seconds: 45s, 2m05s, 30m, 1h08m."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s" if whole % 60 else f"{whole // 60}m"
    minutes = whole % 3600 // 60
    return f"{whole // 3600}h{minutes:02d}m" if minutes else f"{whole // 3600}h"


def money(dollars: float) -> str:
    """Format dollars: to the cent, with more digits below one cent."""
    return f"${dollars:,.2f}" if dollars >= 0.01 or dollars == 0 else f"${dollars:.4f}"
