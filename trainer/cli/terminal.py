"""The streams of a command: `show` prints data to stdout, `Console` messages to stderr.

On a terminal the messages have a live region below them. Piped, with NO_COLOR, TERM=dumb or `--json`, they
are plain lines, one for each event. rich is imported only when something is drawn: it is slow to load, and
usage errors should not wait for it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO

from trainer.base import environment
from trainer.base.text import printable
from trainer.cli.output import one_line

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

QUIET_SECONDS = 10.0  # without a live region, updates are printed this often


def is_terminal(stream: TextIO) -> bool:
    """Return whether a stream is a terminal that may be drawn on."""
    return stream.isatty() and not environment.terminal_is_dumb() and not environment.colours_refused()


def show(renderable: RenderableType, stream: TextIO | None = None) -> None:
    """Print to stdout or another stream: drawn on a terminal, elsewhere as plain text of any width."""
    from trainer.cli.views.drawing import UNLIMITED, console_on, drawn

    stream = stream or sys.stdout
    if is_terminal(stream):
        console_on(stream).print(renderable)
    else:
        width = console_on(stream, plain=True).width if stream.isatty() else UNLIMITED
        stream.write(drawn(renderable, width=width))
    stream.flush()


class Console:
    """Messages on stderr: permanent lines, and on a terminal a live region below them. One that can't be
    shown ends no command: the reader or the terminal may be gone, or the disk full.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        plain: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`plain` asks for lines on a terminal, too."""
        self.stream = stream or sys.stderr
        self.live = is_terminal(self.stream) and not plain
        self._clock = clock
        self._region: Live | None = None
        self._picture: Callable[[], RenderableType] = str
        self._paused = False
        self._held: list[Callable[[], None]] = []  # lines that wait for `resume`
        self._printed_at = float("-inf")

    def line(self, text: str = "", style: str = "") -> None:
        """Print a permanent line."""
        if self._paused:
            self._held.append(lambda: self.line(text, style))
        elif self.live:
            from trainer.cli.views.table import styled

            self.show(styled(text, style))
        else:
            self.prompt(f"{one_line(text)}\n")
            self._printed_at = self._clock()

    def show(self, renderable: RenderableType) -> None:
        """Print a renderable permanently, above the live region."""
        if self._paused:
            self._held.append(lambda: self.show(renderable))
            return
        with suppress(OSError):
            if self._region is not None:
                self._region.console.print(renderable)
            else:
                show(renderable, self.stream)
        self._printed_at = self._clock()

    def update(self, text: str) -> None:
        """Show progress in the live region; without one, as a line at most every QUIET_SECONDS."""
        if self.live:
            from trainer.cli.views.table import DIM, styled

            self.draw(lambda: styled(f"  {text}", DIM))
        elif not self._paused and self._clock() - self._printed_at >= QUIET_SECONDS:
            self.line(text)

    def draw(self, picture: Callable[[], RenderableType]) -> None:
        """Show a renderable in the live region, redrawn a few times a second; without a live region do
        nothing.
        """
        if not self.live or self._paused:
            return
        self._picture = picture
        with suppress(OSError):
            if self._region is None:
                from trainer.cli.views.drawing import live_region

                self._region = live_region(self.stream, lambda: self._picture())
            self._region.refresh()

    def prompt(self, text: str) -> None:
        """Print a text without a line end."""
        with suppress(OSError):
            self.stream.write(printable(text))
            self.stream.flush()

    def pause(self) -> None:
        """Stop all output until `resume`: no live region, no updates; lines are queued."""
        self.close()
        self._paused = True

    def resume(self) -> None:
        """Continue after `pause` and print the queued lines."""
        self._paused = False
        held, self._held = self._held, []
        for print_it in held:
            print_it()

    def close(self) -> None:
        """Remove the live region, so that the next output begins on an empty line."""
        region, self._region = self._region, None
        with suppress(OSError):
            if region is not None:
                region.stop()
            self.stream.flush()
