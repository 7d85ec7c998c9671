"""The documentation: links lead to files and headings, named files exist, decisions are numbered."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    *ROOT.glob("*.md"),
    *(page for folder in ("docs", "examples", "tests") for page in (ROOT / folder).rglob("*.md")),
]
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]+))?\)")
FILE = re.compile(
    r"(?<![\w/.-])((?:trainer|infra|tests|scripts|examples|ami|benchmarks|docs)/[\w./-]*\w)(?![\w./-]|` at commit)"
)
PAGE = re.compile(r"(?<![\w/.-])(?:docs|examples)/[\w./-]*\w")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_of_a_page_lead_to_files_and_headings(page: Path) -> None:
    for link, heading in LINK.findall(page.read_text("utf-8")):
        target = page.parent / link if link else page
        assert target.exists(), link
        assert not heading or heading in headings(target), f"{link}#{heading}"


def headings(page: Path) -> set[str]:
    """Return a page's headings as GitHub links to them."""
    lines = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL), re.M)
    return {re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-") for line in lines}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_files_that_a_page_names_exist(page: Path) -> None:
    assert [name for name in FILE.findall(page.read_text("utf-8")) if not (ROOT / name).exists()] == []


def test_the_architectures_tables_of_a_folder_name_its_files() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    for folder, rows in re.findall(r"^\| file of `([\w/]+)` .*\n\| ---.*\n((?:\|.*\n)+)", page, re.M):
        for row in rows.splitlines():
            for name in re.findall(r"`(\w+\.\w+)`", row.split("|")[1]):
                assert (ROOT / folder / name).exists(), f"{folder}{name}"


def test_pages_and_examples_that_the_source_names_exist() -> None:
    for folder in ("ami", "benchmarks", "examples", "infra", "scripts", "tests", "trainer"):
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and path.suffix in ("", ".py", ".sh", ".toml", ".txt"):
                missing = [
                    name for name in PAGE.findall(path.read_text("utf-8")) if not (ROOT / name).exists()
                ]
                assert not missing, f"{path}: {missing}"


def test_decisions_are_numbered_by_their_files() -> None:
    decisions = sorted((ROOT / "docs/adr").glob("*.md"))
    assert [page.name[:4] for page in decisions] == [f"{n:04d}" for n in range(1, len(decisions) + 1)]
    for number, page in enumerate(decisions, start=1):
        assert page.read_text("utf-8").startswith(f"# {number}. ")
    named = re.findall(r"\[ADR (\d+)\]\(adr/(\d{4})", "".join(page.read_text("utf-8") for page in PAGES))
    assert all(int(number) == int(file) for number, file in named)
