"""docs/reference.md has the source's commands, keys, settings, variables, codes and resources; drawings have its
rooms and states.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts import diagrams, messages, plans
from scripts.reference import PAGE, PART, kept, renewed
from tests.test_imports import MAY_IMPORT
from trainer.aws.error_codes import CAPACITY, QUOTA
from trainer.base import errors

WRITTEN = {"resources": 3, "variables": 2}  # parts with columns by hand: the columns that must say something


def test_the_reference_is_what_its_source_makes() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert renewed(page) == page, "run scripts/reference"


def test_the_index_of_errors_is_what_its_source_makes() -> None:
    page = messages.PAGE.read_text(encoding="utf-8")
    assert renewed(page) == page, "run scripts/reference"
    found = messages.all_messages()
    assert sum(not messages.says_something(one.what) for one in found) < 0.05 * len(found)


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


def test_the_drawings_are_what_their_source_makes() -> None:
    assert diagrams.ROOMS.keys() == MAY_IMPORT.keys() - {"infra"}
    drawn = {path.name: path.read_text(encoding="utf-8") for path in diagrams.OUT.iterdir()}
    assert drawn == diagrams.drawings(), "run scripts/reference"


def test_the_runbook_has_a_row_for_each_exit_code() -> None:
    page = (PAGE.parent / "runbook.md").read_text(encoding="utf-8")
    codes = set(re.findall(r" (\d+) +\S", errors.__doc__ or ""))
    assert codes and codes == set(re.findall(r"^\| exit code (\d+)", page, re.MULTILINE))


def test_the_runbook_quotes_the_remedies_of_the_table() -> None:
    page = (PAGE.parent / "runbook.md").read_text(encoding="utf-8")
    assert all(f"). {meaning.remedy}`" in page for meaning in (CAPACITY, QUOTA))
