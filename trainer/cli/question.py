"""The question after Ctrl-C on a terminal: end the run, leave it running, or go on."""

from __future__ import annotations

import os
import select
import sys

from trainer.cli.terminal import Console
from trainer.control.stop import Wish

WORDS = "Ctrl-C: end the run (e), leave it running (l), or go on (g)? Ctrl-C again ends it: "
ANSWERS = {"e": Wish.END, "l": Wish.LEAVE, "g": Wish.GO_ON, "": Wish.GO_ON}  # by their first letter
MOST_BYTES = 4096


class TerminalQuestion:
    """Asks on the terminal without holding up the run. The live region is hidden while the question
    is open.
    """

    def __init__(self, console: Console) -> None:
        self._console = console

    def open(self) -> None:
        """Print the question and discard earlier input."""
        self._console.pause()
        while _is_typed():
            if not os.read(sys.stdin.fileno(), MOST_BYTES):
                break
        self._console.prompt(f"\n{WORDS}")

    def answer(self) -> Wish | None:
        """Return the answer, None if there is none yet. Asks again after an invalid one."""
        if not _is_typed():
            return None
        typed = os.read(sys.stdin.fileno(), MOST_BYTES).decode(errors="replace").strip().lower()
        wish = ANSWERS.get(typed[:1])
        if wish is None:
            self._console.prompt("e, l or g: ")
        return wish

    def close(self) -> None:
        """Start a new line and show the live region again."""
        self._console.resume()


def question(console: Console) -> TerminalQuestion | None:
    """Return the question if stdin and stderr are a terminal, else None."""
    return TerminalQuestion(console) if sys.stdin.isatty() and console.stream.isatty() else None


def _is_typed() -> bool:
    return bool(select.select([sys.stdin], [], [], 0)[0])
