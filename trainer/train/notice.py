"""The notice that this machine is about to be taken away: a file whose one line says what to do.

    checkpoint    write a checkpoint now and go on
    stop          write a last checkpoint and end

The agent names it in MAYFLY_NOTICE; it does not exist until there is something to hear. Training looks
between steps, at most once a second.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from trainer.base.files import read_plain

CHECKPOINT, STOP = "checkpoint", "stop"
WORDS = ("", CHECKPOINT, STOP)
LOOK_SECONDS = 1.0
MOST_BYTES = 4096

Heard = Callable[[], str]  # one of WORDS: what the loop has to do now


class Notice:
    """Looks at a notice's file, on behalf of one process; without a file it never hears anything."""

    def __init__(self, path: Path | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = path, clock
        self._looked_at = float("-inf")
        self._word = ""
        self._new = False  # the word was not handed on yet

    def __call__(self) -> str:
        """Return CHECKPOINT once, STOP from the time on at which it is heard, else an empty text."""
        self._look()
        word = self._word if self._new or self._word == STOP else ""
        self._new = False
        return word

    @property
    def stops(self) -> bool:
        """Return whether the machine has said STOP; hands nothing on."""
        self._look()
        return self._word == STOP

    def _look(self) -> None:
        if self._path is None or self._word == STOP or self._clock() - self._looked_at < LOOK_SECONDS:
            return
        self._looked_at = self._clock()
        word = ""
        with suppress(OSError):  # nothing was said
            words = read_plain(self._path, most_bytes=MOST_BYTES).decode(errors="replace").split()
            word = words[-1] if words else ""
        if word in (CHECKPOINT, STOP) and word != self._word:
            self._word, self._new = word, True
