"""Tables of docs/infrastructure.md, as tests compare them with the program; `scripts/golden` writes them
anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "infrastructure.md"


def rows_of(section: str) -> list[list[str]]:
    """Return the cells of the rows of a section's table, without its head."""
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in _section(section).splitlines()
        if _is_row(line)
    ]


def hold(section: str, expected: Sequence[Sequence[str]], *, renew: bool) -> None:
    """Compare a section's table with what it should be; with `renew` write it there first.

    Columns beyond the expected ones are people's: a row keeps them by its first cell, and each has to say
    something.
    """
    if renew:
        kept = {row[0]: row[len(expected[0]) :] for row in rows_of(section)}
        lines = _section(section).splitlines()
        first = next(number for number, line in enumerate(lines) if line.startswith("| ---")) + 1
        empty = [""] * (lines[first - 2].count("|") - 1 - len(expected[0]))
        rows = [_as_row([*cells, *kept.get(cells[0], empty)]) for cells in expected]
        text = "\n".join([*lines[:first], *rows, *(line for line in lines[first:] if not _is_row(line))])
        page = PAGE.read_text(encoding="utf-8").replace(_section(section), text + "\n")
        PAGE.write_text(page, encoding="utf-8")
    found, width = rows_of(section), len(expected[0])
    assert [row[:width] for row in found] == [list(cells) for cells in expected], "run scripts/golden"
    assert all(cell for row in found for cell in row[width:]), f"{section} has an empty cell"


def _section(section: str) -> str:
    return PAGE.read_text(encoding="utf-8").partition(f"\n## {section}\n")[2].partition("\n## ")[0]


def _is_row(line: str) -> bool:
    return line.startswith("| `")


def _as_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |".replace("|  |", "| |")
