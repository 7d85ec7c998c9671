"""docs/reference.md has the source's commands, keys, settings, variables, codes and resources."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import plans
from scripts.reference import PAGE, PART, kept, renewed

WRITTEN = {"resources": 3, "variables": 2}  # parts with columns by hand: the columns that must say something


def test_the_reference_is_what_its_source_makes() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert renewed(page) == page, "run scripts/reference"


@pytest.mark.parametrize("file", [plans.PAGE, plans.AGENTS_PAGE], ids=lambda file: file.stem)
def test_the_plans_of_a_page_are_those_of_today(
    file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MAYFLY_PROFILES", str(tmp_path / "profiles.toml"))
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    page = file.read_text(encoding="utf-8")
    assert renewed(page) == page, "run scripts/reference"


def test_every_row_of_the_reference_says_something() -> None:
    parts = {name: part for name, _, part in PART.findall(PAGE.read_text(encoding="utf-8"))}
    for name, columns in WRITTEN.items():
        empty = [row[0] for row in kept(parts[name]).values() if not all(row[:columns])]
        assert not empty, f"fill in {empty}"
