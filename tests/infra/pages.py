"""Tables of docs/infrastructure.md, as tests compare them with the program."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "infrastructure.md"


def rows_of(section: str) -> list[list[str]]:
    """Return the cells of the rows of a section's table, without its head."""
    text = PAGE.read_text(encoding="utf-8").partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| `")]


def as_rows(table: Sequence[Sequence[str]]) -> str:
    """Return a table as the page has it, to be pasted."""
    return "\n".join(f"| {' | '.join(cells)} |".replace("|  |", "| |") for cells in table)
