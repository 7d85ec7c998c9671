"""The streams of a command: `show` prints data to stdout, `Console` messages to stderr. Only this module makes rich's consoles.

On a terminal the story has a live region below its lines. Piped, with NO_COLOR, TERM=dumb or `--json`, it is plain lines, one
for each event.
"""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable, Iterable
from typing import TextIO

from rich import console as rich_console
from rich.console import ConsoleOptions, RenderableType
from rich.live import Live
from rich.segment import Segment
from rich.text import Text

from trainer import environment
from trainer.cli.output import printable
from trainer.cli.table import styled

QUIET_SECONDS = 10.0  # without a live region, updates are printed this often
REFRESHES_PER_SECOND = 4.0
UNLIMITED = 10_000  # columns where no terminal limits them: a row is a line


class SafeConsole(rich_console.Console):
    """rich's console, with every text made harmless: only rich itself gives a terminal commands."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of a renderable, escaped."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


def is_terminal(stream: TextIO) -> bool:
    """Return whether a stream is a terminal that may be drawn on."""
    return stream.isatty() and not environment.terminal_is_dumb() and not environment.colours_refused()


def drawn(renderable: RenderableType, *, width: int = UNLIMITED) -> str:
    """Return what a terminal of that width shows, as plain text without spaces at the ends of lines."""
    text = io.StringIO()
    SafeConsole(file=text, width=width, color_system=None, highlight=False, markup=False, emoji=False).print(renderable)
    return "".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines())


def show(renderable: RenderableType, stream: TextIO | None = None) -> None:
    """Print to stdout, or to another stream: drawn on a terminal, plain and as wide as it is elsewhere."""
    stream = stream or sys.stdout
    if is_terminal(stream):
        _console(stream).print(renderable)
    elif stream.isatty():
        stream.write(drawn(renderable, width=_console(stream).width))
    else:
        stream.write(drawn(renderable))
    stream.flush()


class Console:
    """Messages on stderr: lines that stay, and on a terminal a region below them that changes in place."""

    def __init__(
        self, stream: TextIO | None = None, *, plain: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`plain` asks for lines on a terminal, too."""
        self.stream = stream or sys.stderr
        self.live = is_terminal(self.stream) and not plain
        self._clock = clock
        self._region: Live | None = None
        self._paused = False
        self._picture: Callable[[], RenderableType] = Text
        self._printed_at = float("-inf")

    def line(self, text: str = "", style: str = "") -> None:
        """Print a line that stays."""
        self.show(styled(text, style))

    def show(self, renderable: RenderableType) -> None:
        """Print something that stays, above the live region."""
        if self._region is not None:
            self._region.console.print(renderable)
        else:
            show(renderable, self.stream)
        self._printed_at = self._clock()

    def update(self, text: str) -> None:
        """Show progress: in the live region; without one as a line, at most every QUIET_SECONDS."""
        if self.live:
            self.draw(lambda: styled(f"  {text}", "dim"))
        elif not self._paused and self._clock() - self._printed_at >= QUIET_SECONDS:
            self.line(text)

    def draw(self, picture: Callable[[], RenderableType]) -> None:
        """Show a picture in the live region, drawn anew a few times a second; without a live region do nothing."""
        if not self.live or self._paused:
            return
        self._picture = picture
        if self._region is None:
            self._region = Live(
                console=_console(self.stream),
                get_renderable=lambda: self._picture(),
                refresh_per_second=REFRESHES_PER_SECOND,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._region.start()
        self._region.refresh()

    def prompt(self, text: str) -> None:
        """Print a question, and leave the cursor behind it."""
        self.stream.write(printable(text))
        self.stream.flush()

    def pause(self) -> None:
        """Keep the terminal as it is until `resume`: no live region, and no updates."""
        self.close()
        self._paused = True

    def resume(self) -> None:
        """Go on after `pause`."""
        self._paused = False

    def close(self) -> None:
        """Remove the live region, so that the next output begins on an empty line."""
        if self._region is not None:
            self._region.stop()
            self._region = None
        self.stream.flush()


def _console(stream: TextIO) -> SafeConsole:
    return SafeConsole(file=stream, force_terminal=is_terminal(stream), highlight=False, markup=False, emoji=False)
