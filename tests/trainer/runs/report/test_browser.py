"""A report in headless Chromium: it draws without a word on the console, and hostile names stay texts."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.reports import planted_report
from tests.trainer.base.test_html import HOSTILE
from trainer.runs.report.page import page

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
SECONDS = 120  # for a page, on a busy machine
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium"),
]
POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')
Browse = Callable[..., "Drawn"]


class Drawn(HTMLParser):
    """A page as the browser drew it: elements, attributes by name, and the texts outside of scripts."""

    def __init__(self, dom: str, console: list[str]) -> None:
        super().__init__()
        self.console, self.elements, self.attributes = console, Counter[str](), Counter[str]()
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(dom)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements[tag] += 1
        self.attributes.update(name for name, _ in attrs)
        self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self._open):
            self.texts.append(data)


@pytest.fixture
def browse(tmp_path: Path) -> Browse:
    def draw(made: bytes, *, act: str = "", width: int = 1440) -> Drawn:
        """Draw a page, with its policy as it is; with `act` without one, since that is one more script."""
        text = made.decode()
        if act:
            text = POLICY.sub("", text).replace("</body>", f"<script>{act}</script></body>")
        path = tmp_path / "report.html"
        path.write_text(text, encoding="utf-8")
        words = [
            *(str(CHROMIUM), "--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"),
            *("--no-first-run", "--disable-background-networking", "--disable-component-update"),
            *(
                f"--user-data-dir={tmp_path / 'profile'}",
                f"--window-size={width},2000",
                "--virtual-time-budget=2000",
            ),
            *("--dump-dom", path.as_uri()),
        ]
        done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, check=True)
        lines = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
        console = [line for line in lines if "source: chrome://" not in line]  # a page of the browser's own
        return Drawn(done.stdout, console)

    return draw


def test_a_report_draws_every_section_under_its_policy(browse):
    drawn = browse(page(planted_report(3, epochs=6)))
    assert drawn.console == []
    texts = " ".join(drawn.texts)
    for section in (
        *("Asked and answered", "Models", "Learning curves", "Equity", "One model", "Calibration: up"),
        *(
            "Times",
            "beats every baseline",
            "lost its machine",
            "GPU use, %",
            "Predicted and actual",
            "Lineage",
        ),
    ):
        assert section in texts, section
    assert "can't be drawn" not in texts and "NaN" not in texts and "undefined" not in texts
    assert drawn.elements["canvas"] >= 7


@pytest.mark.parametrize("name", HOSTILE[:4])
def test_hostile_names_stay_texts(browse, name):
    data = planted_report(3, epochs=2, names=f"{name} {{0}}")
    data["error"] = {"what": name, "why": name, "do": name}
    data["events"]["rows"].append(["2026-11-20T12:00:00Z", 1, name, name, name])
    data["curves"]["pieces"] = [{**one, "piece": name} for one in data["curves"]["pieces"]]
    data["failed"] = {"total": 1, "rows": [[name, name]]}
    drawn = browse(page(data))
    assert drawn.console == []
    assert drawn.elements["script"] == 5 and drawn.elements["img"] == 0 and "onerror" not in drawn.attributes
    assert "can't be drawn" not in " ".join(drawn.texts)


def test_the_gates_decision_stands_beside_the_model(browse):
    data = planted_report(2, epochs=2)
    piece = data["models"]["rows"][0]["piece"]
    made = {
        "piece": piece,
        "name": "crypto/a",
        "promote": True,
        "reason": "better",
        "gain": [0.01, 0.005, 0.015],
    }
    texts = " ".join(browse(page({**data, "gate": [made]})).texts)
    assert "promoted to crypto/a: better" in texts and "over production" in texts and "+0.0100" in texts
    assert "Decided" not in texts
    none = {**data, "models": {**data["models"], "total": 0, "rows": []}, "curves": None, "gate": [made]}
    drawn = browse(page({**none, "lanes_left_out": 3}))  # of a score run, of many machines
    texts = " ".join(drawn.texts)
    assert drawn.console == [] and "can't be drawn" not in texts
    for words in (
        "Decided",
        piece,
        "crypto/a",
        "✓ promoted",
        "+0.0100",
        "better",
        "without 3 lanes before these",
    ):
        assert words in texts, words


def test_hostile_names_are_no_wider_than_a_small_screen(browse):
    data = planted_report(3, epochs=2, names="<img src=x onerror=alert(1)>" * 4 + "{0}")
    act = "const page = document.documentElement;"
    act += "document.body.append(`wide ${page.scrollWidth - page.clientWidth}.`);"
    assert "wide 0." in " ".join(browse(page(data), act=act, width=520).texts)


def test_a_thousand_models_are_few_elements_and_sort(browse):
    made = page(planted_report(1_000, epochs=12))
    assert len(made) < 3_000_000
    drawn = browse(made)
    assert drawn.console == [] and sum(drawn.elements.values()) < 6_000
    assert "1 to 25 of 1,000" in drawn.texts
    act = """
    [...document.querySelectorAll("button")].find((one) => one.textContent === "next \\u203a").click();
    const filter = document.querySelector("input[type=search]");
    """
    assert "26 to 50 of 1,000" in browse(made, act=act).texts
    act += """
    filter.value = "SYM09"; filter.dispatchEvent(new Event("input"));
    [...document.querySelectorAll("th button")].find((one) => one.textContent === "model").click();
    """
    shown = browse(made, act=act).texts
    assert "1 to 25 of 100" in shown
    assert [one for one in shown if re.fullmatch(r"SYM\d{4}-USD", one)][:2] == ["SYM0900-USD", "SYM0901-USD"]


def test_the_head_counts_every_lost_attempt_and_every_value(browse):
    data = planted_report(2, epochs=2)
    for one in data["attempts"]:
        one["cause"] = "lost"
    value = {"piece": "v", "values": {"lr": "1"}, "done": True, "exit_code": 0, "metric": "", "best": None}
    value |= {"better": "", "seconds": 1.0, "starts": 1, "study": "", "end": ""}
    data["values"] = {"total": 1_500, "done": 1_400, "rows": [value]}
    drawn = browse(page(data))
    assert drawn.console == []
    texts = " ".join(" ".join(drawn.texts).split())
    assert "2 attempts 2 lost" in texts and "1,400 of 1,500 values done" in texts


def test_a_column_of_numbers_and_words_has_an_order(browse):
    data = planted_report(1, epochs=2)
    value = {
        "done": True,
        "exit_code": 0,
        "metric": "",
        "best": None,
        "better": "",
        "seconds": 1.0,
        "starts": 1,
    }
    value |= {"study": "", "end": ""}
    batches = ("64", "auto", "8", "none", "128", "all", "16")
    rows = [{**value, "piece": f"v{one}", "values": {"batch": one}} for one in batches]
    data["values"] = {"total": len(rows), "done": len(rows), "rows": rows}
    act = """
    [...document.querySelectorAll("th button")].find((one) => one.textContent === "batch").click();
    """
    shown = [one for one in browse(page(data), act=act).texts if one in {f"v{one}" for one in batches}]
    assert shown == ["v8", "v16", "v64", "v128", "vall", "vauto", "vnone"]
