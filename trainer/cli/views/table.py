"""Layouts of the command line for rich: tables that fit the terminal, unbreakable parts, labelled blocks.

Texts are literal: no markup. `trainer.cli.terminal` escapes control characters.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from trainer.cli.output import one_line

Cell = str | Text
GAP = 2  # spaces between columns
EMPTY = ("", "-")  # cells without a value
WRAPPED, LEAST_WRAPPED = (
    24,
    12,
)  # width that a text that wraps gets before other columns leave, and in the end
SEPARATOR = " · "
GOOD, BAD, DIM, STRONG = "green", "red", "dim", "bold"  # styles


@dataclass(frozen=True, kw_only=True)
class TableColumn:
    """A column of a table. If the width is too small, columns with the highest `leaves` are dropped first; 0
    always stays.
    """

    title: str
    right: bool = False
    leaves: int = 0
    wraps: bool = False  # a text for people, which may take several lines
    style: str = ""


class FittedTable:
    """Rows under their titles, with as many columns as fit. Columns without a value are left out."""

    def __init__(
        self, columns: Sequence[TableColumn], rows: Iterable[Sequence[Cell]], *, indent: int = 0
    ) -> None:
        """Each row has a cell for each column."""
        cells = [[_text(cell) for cell in row] for row in rows]
        shown = [
            number
            for number in range(len(columns))
            if not cells or any(row[number].plain not in EMPTY for row in cells)
        ]
        self._columns = [columns[number] for number in shown]
        self._rows = [[row[number] for number in shown] for row in cells]
        self._indent = indent

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw the table with the columns that fit."""
        shown, fits = self._fitting(options.max_width - self._indent)
        table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style=DIM)
        for number in shown:
            column = self._columns[number]
            table.add_column(
                _text(column.title),
                justify="right" if column.right else "left",
                style=column.style,
                no_wrap=fits and not column.wraps,
                overflow="fold",
            )
        for row in self._rows:
            table.add_row(*(row[number] for number in shown))
        yield Padding(table, (0, 0, 0, self._indent), expand=False)

    def _fitting(self, width: int) -> tuple[list[int], bool]:
        """Return the columns that stay, and whether they fit."""
        shown = list(range(len(self._columns)))
        while self._total(shown, WRAPPED) > width:
            leaving = max(shown, key=lambda number: (self._columns[number].leaves, number))
            if not self._columns[leaving].leaves:
                return shown, self._total(shown, LEAST_WRAPPED) <= width
            shown.remove(leaving)
        return shown, True

    def _total(self, shown: Sequence[int], wrapped: int) -> int:
        return sum(self._width(number, wrapped) + GAP for number in shown) - GAP

    def _width(self, number: int, wrapped: int) -> int:
        column = self._columns[number]
        width = max(map(cell_len, [column.title, *(row[number].plain for row in self._rows)]))
        return min(width, max(wrapped, cell_len(column.title))) if column.wraps else width


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

    def __init__(self, entries: Iterable[tuple[str, RenderableType]], *, indent: int = 2) -> None:
        self._entries = [
            (one_line(label), _text(content) if isinstance(content, str) else content)
            for label, content in entries
        ]
        self._indent = indent

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw the blocks."""
        margin = " " * self._indent
        widest = max((cell_len(label) for label, _ in self._entries), default=0) + GAP
        inner = options.update_width(max(1, options.max_width - self._indent - widest))
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
