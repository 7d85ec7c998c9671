"""Links of the documentation lead to files of the checkout, and decisions are numbered without a gap."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    *ROOT.glob("*.md"),
    *(page for folder in ("docs", "examples", "tests") for page in (ROOT / folder).rglob("*.md")),
]
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]+)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_of_a_page_lead_to_files(page: Path) -> None:
    missing = [link for link in LINK.findall(page.read_text("utf-8")) if not (page.parent / link).exists()]
    assert not missing


def test_decisions_are_numbered_by_their_files() -> None:
    decisions = sorted((ROOT / "docs/adr").glob("*.md"))
    assert [page.name[:4] for page in decisions] == [f"{n:04d}" for n in range(1, len(decisions) + 1)]
    for number, page in enumerate(decisions, start=1):
        assert page.read_text("utf-8").startswith(f"# {number}. ")
    named = re.findall(r"\[ADR (\d+)\]\(adr/(\d{4})", "".join(page.read_text("utf-8") for page in PAGES))
    assert all(int(number) == int(file) for number, file in named)
