"""Layouts of the command line for rich: tables that fit the terminal, unbreakable parts, labelled blocks.

Texts are literal: no markup. `trainer.cli.terminal` escapes control characters.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from trainer.cli.output import one_line

Cell = str | Text
GAP = 2  # spaces between columns
INDENT = 2  # of labelled blocks
EMPTY = ("", "-")  # cells without a value
WRAPPED, LEAST_WRAPPED = 24, 12  # width of a text that wraps: before other columns leave, and in the end
SEPARATOR = " · "
GOOD, BAD, DIM, STRONG = "green", "red", "dim", "bold"  # styles


class FittedTable:
    """Rows by title, with as many columns as fit. Columns without a value are left out."""

    def __init__(
        self,
        rows: Iterable[Mapping[str, Cell]],
        *,
        right: Collection[str] = (),
        leaving: Collection[str] = (),
        wraps: Collection[str] = (),
    ) -> None:
        """Each row has the same titles. `right`: those of numbers. `leaving`: those that go where the width
        is too small, the first of them first. `wraps`: those of texts that may take several lines.
        """
        self._rows = [{title: _text(cell) for title, cell in row.items()} for row in rows]
        titles = self._rows[0] if self._rows else {}
        self._titles = [title for title in titles if any(row[title].plain not in EMPTY for row in self._rows)]
        self._right, self._leaving, self._wraps = right, leaving, wraps
        self._widths = {
            title: max(map(cell_len, [title, *(row[title].plain for row in self._rows)]))
            for title in self._titles
        }

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw the table with the columns that fit."""
        shown, fits = self._fitting(options.max_width)
        if shown and fits and not any(title in self._wraps for title in shown):
            yield from self._lines(console, shown)
            return
        table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style=DIM)
        for title in shown:
            table.add_column(
                _text(title),
                justify="right" if title in self._right else "left",
                no_wrap=fits and title not in self._wraps,
                overflow="fold",
            )
        for row in self._rows:
            table.add_row(*(row[title] for title in shown))
        yield table

    def _lines(self, console: Console, shown: Sequence[str]) -> Iterable[Segment]:
        """Yield each row as one line, twelve times as fast as rich's table, which can wrap texts: a team has
        100,000 models.
        """
        for row in ({title: Text(one_line(title), style=DIM) for title in shown}, *self._rows):
            for title in shown:
                yield from self._padded(console, title, row[title])
                if title != shown[-1]:
                    yield Segment(" " * GAP)
            yield Segment.line()

    def _padded(self, console: Console, title: str, text: Text) -> Iterable[Segment]:
        if text.style or text.spans:
            text = text.copy()
            text.align("right" if title in self._right else "left", self._widths[title])
            return text.render(console)
        space = " " * (self._widths[title] - text.cell_len)
        return [Segment(space + text.plain if title in self._right else text.plain + space)]

    def _fitting(self, width: int) -> tuple[list[str], bool]:
        """Return the columns that stay, and whether they fit."""
        shown = list(self._titles)
        for title in self._leaving:
            if self._total(shown, WRAPPED) <= width:
                break
            if title in shown:
                shown.remove(title)
        least = WRAPPED if self._total(shown, WRAPPED) <= width else LEAST_WRAPPED
        return shown, self._total(shown, least) <= width

    def _total(self, shown: Sequence[str], wrapped: int) -> int:
        return sum(self._width(title, wrapped) + GAP for title in shown) - GAP

    def _width(self, title: str, wrapped: int) -> int:
        width = self._widths[title]
        return min(width, max(wrapped, cell_len(title))) if title in self._wraps else width


class Inline:
    """Short texts in a row, separated by dots. Lines break between texts; inside one only if it is longer
    than a line.
    """

    def __init__(self, parts: Iterable[Cell]) -> None:
        self._parts = [text for part in parts if (text := _text(part)).plain]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw the parts, as many to a line as it has room for."""
        line = Text()
        for part in self._parts:
            if line.plain and line.cell_len + cell_len(SEPARATOR) + part.cell_len > options.max_width:
                yield line
                line = Text()
            if line.plain:
                line.append(SEPARATOR, DIM)
            line.append_text(part)
        yield line


def lines(*renderables: RenderableType) -> RenderableType:
    """Return renderables below each other; strings are shown as they are."""
    return Group(*(_text(item) if isinstance(item, str) else item for item in renderables))


class Blocks:
    """Blocks with their labels on the left, in one column; an empty label continues the block above."""

    def __init__(self, entries: Iterable[tuple[str, RenderableType]]) -> None:
        self._entries = [
            (one_line(label), _text(content) if isinstance(content, str) else content)
            for label, content in entries
        ]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw the blocks."""
        margin = " " * INDENT
        widest = max((cell_len(label) for label, _ in self._entries), default=0) + GAP
        inner = options.update_width(max(1, options.max_width - INDENT - widest))
        dim = console.get_style(DIM)
        for label, content in self._entries:
            beside = margin + label + " " * (widest - cell_len(label))
            for line in console.render_lines(content, inner, pad=False):
                yield Segment(beside, dim)
                yield from line
                yield Segment.line()
                beside = margin + " " * widest


def styled(text: str, style: str) -> Text:
    """Return a line in a style."""
    return Text(one_line(text), style=style)


def _text(cell: Cell) -> Text:
    return cell if isinstance(cell, Text) else Text(one_line(cell))
