"""A rich console that escapes all texts, and rendering to plain text. The only module that makes rich
consoles.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from typing import TextIO

from rich import console as rich_console
from rich.console import ConsoleOptions, RenderableType
from rich.live import Live
from rich.segment import Segment

from trainer.base.text import printable

REFRESHES_PER_SECOND = 4.0
UNLIMITED = 10_000  # columns where no terminal limits them: a row is a line


class SafeConsole(rich_console.Console):
    """rich's console, with every text made harmless: only rich itself gives a terminal commands."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of a renderable, escaped."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


def drawn(renderable: RenderableType, *, width: int = UNLIMITED) -> str:
    """Return what a terminal of that width shows, as plain text without spaces at the ends of lines."""
    text = io.StringIO()
    SafeConsole(file=text, width=width, color_system=None, highlight=False, markup=False, emoji=False).print(
        renderable
    )
    return "".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines())


def console_on(stream: TextIO, *, plain: bool = False) -> SafeConsole:
    """Return a console on a terminal; `plain` gives one without colours."""
    return SafeConsole(file=stream, force_terminal=not plain, highlight=False, markup=False, emoji=False)


def live_region(stream: TextIO, picture: Callable[[], RenderableType]) -> Live:
    """Start a live region on a terminal: `picture` is redrawn a few times a second until it is stopped, and
    then removed.
    """
    region = Live(
        console=console_on(stream),
        get_renderable=picture,
        refresh_per_second=REFRESHES_PER_SECOND,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    region.start()
    return region
