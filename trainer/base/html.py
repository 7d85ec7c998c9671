"""HTML pages of one file that load nothing: a run's report, a picture of candles.

Texts are escaped, control characters and marks of direction shown as escapes. A policy in the page
(https://developer.mozilla.org/docs/Web/HTTP/Guides/CSP, looked up 2026-11-27) allows the styles and scripts
whose hashes it names, and no request: what gets past the escaping still does not run. Standard library only.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from trainer.base.text import printable

LOOK = Path(__file__).with_name("page.css")  # colours and type of every page
_BEGIN, _END = b'<script type="application/json" id="data">', b"</script>"


def text(value: str) -> str:
    """Return a text for HTML, in one line."""
    return escape(printable(value).replace("\n", " "))


def document(
    title: str, *, style: str, body: str, scripts: Sequence[str] = (), data: Mapping[str, Any] | None = None
) -> str:
    """Return a page. `title` is plain text, `style` is added to the look of every page, `body` is HTML whose
    texts are escaped, `data` is for the scripts, which read it from the element of that id.
    """
    styles = f"{LOOK.read_text(encoding='utf-8')}{style}"
    script = f"script-src {' '.join(map(_hash, scripts))}; " if scripts else ""
    policy = f"default-src 'none'; {script}style-src {_hash(styles)}; base-uri 'none'; form-action 'none'"
    embedded = "" if data is None else f"{_BEGIN.decode()}{_json(data)}{_END.decode()}\n"
    code = "\n".join(f"<script>{one}</script>" for one in scripts)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{text(title)}</title>
<style>{styles}</style>
</head>
<body>
{body}
{embedded}{code}
</body>
</html>
"""


def embedded_json(page: bytes) -> bytes:
    """Return the data of a page that `document` made, unread; b"" without any."""
    _, found, rest = page.partition(_BEGIN)
    return rest.partition(_END)[0] if found else b""


def _json(data: Mapping[str, Any]) -> str:
    """Return JSON in which no text can end the element: ASCII, without `<`, `>` and `&`."""
    made = json.dumps(_shown(data), separators=(",", ":"), allow_nan=False)
    for letter in "<>&":
        made = made.replace(letter, f"\\u{ord(letter):04x}")
    return made


def _shown(value: Any) -> Any:
    """Return a JSON value whose texts and keys are printable."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping):
        return {printable(str(key)): _shown(item) for key, item in value.items()}
    return [_shown(item) for item in value] if isinstance(value, (list, tuple)) else value


def _hash(source: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"
