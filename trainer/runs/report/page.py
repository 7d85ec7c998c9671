"""The page of a run's report: its data in a frame that draws it, as one file that loads nothing.

Lines are drawn by uPlot 1.6.32 (https://github.com/leeoniya/uPlot, MIT; `uplot.LICENSE`), which makes its
elements by the DOM and sets texts by `textContent`, so that the page's policy holds (looked up 2026-11-27).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer.base.html import document, embedded_json, text
from trainer.base.strict_json import Unsound, read_object
from trainer.runs.report.data import FORMAT

MOST_PAGE_BYTES = 16 * 2**20
_HERE = Path(__file__).parent
_SCRIPTS = ("uplot.js", "charts.js", "elements.js", "page.js")
_STYLES = ("uplot.css", "page.css")


def page(data: Mapping[str, Any]) -> bytes:
    """Return the page of a run's data, without its curves if they make it too large. Raises Unsound if it
    still is.
    """
    made = _page(data)
    if len(made) > MOST_PAGE_BYTES and data.get("curves"):
        missing = {**data["missing"], "curves": "The curves make this page too large: mayfly pull has them."}
        made = _page({**data, "curves": None, "missing": missing})
    if len(made) > MOST_PAGE_BYTES:
        raise Unsound(f"the report has {len(made):,} bytes, more than {MOST_PAGE_BYTES:,}")
    return made


def data_of(stored: bytes, run_id: str) -> dict[str, Any]:
    """Return the data of a stored page. Raises Unsound for another file, format or run.

    Whoever may write in the bucket wrote it: draw it by `page` anew, and never open what is stored.
    """
    fields = read_object(embedded_json(stored), most_bytes=MOST_PAGE_BYTES, name="the report")
    if fields.values.get("format") != FORMAT or fields.table("run").text("run_id") != run_id:
        raise Unsound(f"the report is not one of {run_id} in format {FORMAT}")
    return dict(fields.values)


def _page(data: Mapping[str, Any]) -> bytes:
    run_id, verdict = str(data["run"]["run_id"]), str(data.get("verdict") or "")
    unseen = (
        f"<noscript><h1>{text(run_id)}</h1><p>{text(verdict)} This page needs its scripts.</p></noscript>"
    )
    return document(
        f"Report of {run_id}",
        style="".join(map(_read, _STYLES)),
        body=f"<main></main>\n{unseen}",
        scripts=[_read(name) for name in _SCRIPTS],
        data=data,
    ).encode()


def _read(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")
