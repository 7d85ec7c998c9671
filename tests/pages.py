"""Commands of the documentation: what README and docs tell a reader to type."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
]
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.M | re.DOTALL)
SPAN = re.compile(r"`((?:mayfly|python -m trainer)\b[^`]*)`")
BEGIN = re.compile(r"(?:^|[\s'\"/(;&])(?:mayfly|python -m trainer(?:\.launch)?)(?= )")


@dataclass(frozen=True)
class Line:
    """A command as a page has it, and where."""

    page: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}: {self.text}"


def blocks(page: Path) -> Iterator[str]:
    """Yield the blocks of a page that are typed at a shell, continued lines joined."""
    for _, language, text in FENCE.findall(page.read_text("utf-8")):
        if language in ("", "sh"):
            yield re.sub(r" *\\\n\s*", " ", text)
