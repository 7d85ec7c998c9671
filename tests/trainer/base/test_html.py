"""Pages of one file: what texts can't do in them."""

from __future__ import annotations

import base64
import hashlib
import json
import re

import pytest

from trainer.base.html import document, embedded_json, text

HOSTILE = (
    "</script><script>alert(1)</script>",
    "<!--<script>",
    '"><img src=x onerror=alert(1)>',
    "\u202egnp.exe\x1b[31m\x00",
    "&lt;b&gt; ' ] ]]>",
    "\u2028\u2029 \ud800",
)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_text_ends_no_element(name):
    page = document(name, style="", body=f"<h1>{text(name)}</h1>", scripts=["1"], data={name: [name]})
    assert re.findall(r"<(/?script|img|b)\b", page) == ["script", "/script", "script", "/script"]
    assert page.count("<!--") == 0 and page.isprintable() is False and "\u202e" not in page
    assert not re.search("[\x00-\x09\x0b-\x1f\u2028\u2029\ud800]", page)
    (key, (value,)), *_ = json.loads(embedded_json(page.encode())).items()
    assert key == value and key.isprintable()


def test_the_policy_allows_the_pages_style_and_scripts_alone():
    page = document("t", style="p{}", body="", scripts=["one()", "two()"])
    policy = re.search('Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    styles = re.search("<style>(.*?)</style>", page, re.DOTALL)
    assert styles is not None and styles[1].endswith("p{}")

    def named(source: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"

    assert policy[1].split("; ") == [
        "default-src 'none'",
        f"script-src {named('one()')} {named('two()')}",
        f"style-src {named(styles[1])}",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    assert "script-src" not in document("t", style="", body="")


def test_a_page_without_data_has_none():
    assert embedded_json(document("t", style="", body="").encode()) == b""
