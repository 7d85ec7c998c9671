"""docs/reference.md has the source's commands, keys, settings, variables, codes and resources."""

from __future__ import annotations

from scripts.reference import PAGE, PART, kept, renewed

WRITTEN = {"resources": 3, "variables": 2}  # parts with columns by hand: the columns that must say something


def test_the_reference_is_what_its_source_makes() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert renewed(page) == page, "run scripts/reference"


def test_every_row_of_the_reference_says_something() -> None:
    parts = {name: part for name, _, part in PART.findall(PAGE.read_text(encoding="utf-8"))}
    for name, columns in WRITTEN.items():
        empty = [row[0] for row in kept(parts[name]).values() if not all(row[:columns])]
        assert not empty, f"fill in {empty}"
