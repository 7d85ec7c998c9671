"""The site of the documentation, which `scripts/site` builds with Sphinx, MyST and Furo.

The pages are those that GitHub shows, unchanged. docs/index.md is the front page, and its lists of links are
the navigation. Whatever a page links to is on the site: another page, or a copy of the file.
"""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.search.en import SearchEnglish

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([\w./-]*?)(?:\.md)?\)")

project = "Mayfly"
release = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
html_title = f"Mayfly {release}"
root_doc = "docs/index"
include_patterns = ["*.md", "docs/**.md", "examples/**.md", "tests/live/*.md"]
exclude_patterns = [".*", "**/.*", "site", "trainer", "infra", "ami", "scripts", "dist", "build"]
extensions = ["myst_parser"]
myst_heading_anchors = 4  # as GitHub names them
suppress_warnings = ["myst.header"]  # a page may skip a level of headings
highlight_language = "bash"  # of blocks without a language
smartquotes = False  # commands and quotation marks as they are written
pygments_style, pygments_dark_style = "friendly", "github-dark"
html_theme = "furo"
html_static_path = ["site/site.css", "site/errors.js"]
html_css_files, html_js_files = ["site.css"], ["errors.js"]
html_additional_pages = {"index": "redirect.html"}
templates_path = ["site"]
html_copy_source = html_show_copyright = html_show_sphinx = html_use_index = False


def navigation(text: str) -> str:
    """Return the front page's text with a table of contents of each section's links, for the side bar alone.

    A link to a folder becomes a table of all its pages, which the page shows too.
    """
    first, *sections = re.split(r"^(?=## )", text, flags=re.MULTILINE)
    return first + "".join(_with_contents(section) for section in sections)


def _with_contents(section: str) -> str:
    head, _, rest = section.partition("\n")
    folder = re.search(r"^.*\]\(([\w/]+/)\).*$", rest, re.MULTILINE)
    pages = [f"{folder[1]}*"] if folder else LINK.findall(rest)
    options = [":glob:", f":caption: {head.removeprefix('## ')}", ":titlesonly:" if folder else ":hidden:"]
    contents = ["```{toctree}", *options, "", *pages, "```", ""]
    return "\n".join([head, "" if folder else rest, *contents, ""])


class English(SearchEnglish):
    """The search's English, each word stemmed once: a seventh of the build otherwise."""

    stem = cache(SearchEnglish.stem)


def setup(app: Sphinx) -> None:
    """Add the navigation to the front page as it is read."""
    app.add_search_language(English)

    def read(_: Sphinx, name: str, text: list[str]) -> None:
        if name == root_doc:
            text[0] = navigation(text[0])

    app.connect("source-read", read)
