"""The picture of a check: one file that loads nothing, with every name escaped."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np

from trainer.data.check.folder import check_folder
from trainer.data.check.page import Page
from trainer.data.table import DataSettings

HEADER = "time,open,high,low,close,volume"
HOSTILE = "<img src=x onerror='a()'>&"


class Tags(HTMLParser):
    """Collects the tags of a page with their attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def drawn(folder: Path) -> str:
    page = Page()
    page.write(folder / "page.html", check_folder(folder / "data", DataSettings(), page.add))
    return (folder / "page.html").read_text()


def test_a_page_loads_nothing_and_escapes_hostile_names(tmp_path: Path):
    (tmp_path / "data").mkdir()
    rows = [f"{HOSTILE},{1_609_459_200 + 60 * row},1,2,0.5,1,3" for row in range(30)]
    rows += [
        f"BBB,{1_609_459_200 + 60 * row},1,2,0.5,{1 if row != 7 else 0},3" for row in range(30) if row != 9
    ]
    (tmp_path / "data" / "all_1m.csv").write_text("\n".join([f"symbol,{HEADER}", *rows]))
    (tmp_path / "data" / "C_1m.csv").write_text(f"time,{HOSTILE}\u202e,open\n")  # its error has the name
    text = drawn(tmp_path)
    parser = Tags()
    parser.feed(text)
    names = {tag for tag, _ in parser.tags}
    assert not names & {"script", "img", "link", "iframe", "object", "embed", "a", "form"}
    attributes = {key for _, its in parser.tags for key in its}
    assert not attributes & {"style", "src", "href", "srcset", "action"}
    assert not [key for key in attributes if key.startswith("on")]
    escaped = "&lt;img src=x onerror=&#x27;a()&#x27;&gt;&amp;"
    assert f"<h2>{escaped} " in text and f"{escaped}\\u202e" in text and "\u202e" not in text
    policy = next(its["content"] for tag, its in parser.tags if its.get("http-equiv"))
    style = re.search(r"<style>(.*?)</style>", text, re.S)[1]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert policy.startswith(f"default-src 'none'; style-src 'sha256-{digest}';")
    assert "http:" not in text and "https:" not in text and "@import" not in text and "url(" not in text


def test_a_page_stays_small_and_draws_holes_where_they_are(tmp_path: Path):
    (tmp_path / "data").mkdir()
    times = 1_609_459_200 + 60 * np.delete(np.arange(20_000), np.arange(5_000, 10_000))
    rows = [f"{time},1,2,0.5,1,3" for time in times]
    (tmp_path / "data" / "AAA_1m.csv").write_text("\n".join([HEADER, *rows]))
    text = drawn(tmp_path)
    assert len(text) < 30_000
    (span,) = re.findall(r'class="span" d="M(\d+) 5H(\d+)"', text)
    assert [int(edge) for edge in span] == [249, 500]  # of 1,000
    bars = re.search(r'class="bars" d="([^"]*)"', text)[1]
    assert bars.count("M") == 225  # of 300 buckets, none in the hole
