"""Output of a script that knows secrets, line by line into a log, without them.

It keeps a secret out of logs by accident, not by intent: a script can write one backwards.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import IO
from urllib.parse import quote, quote_plus

MOST_LINE, MOST_LINES = 8 * 1024, 10_000
FEWEST_LETTERS = 4  # of a line of a secret: shorter ones would black out words


class Redaction:
    """Secrets to be left out, by their names, and the last line that was logged."""

    def __init__(self, secrets: Mapping[str, str]) -> None:
        self.last_line = ""
        forms: dict[str, str] = {}
        for name, value in secrets.items():
            for line in (value, *value.splitlines()):
                spelled = (line, quote(line), quote(line, safe=""), quote_plus(line), json.dumps(line)[1:-1], repr(line)[1:-1])
                forms |= {form: name for form in spelled if len(form) >= FEWEST_LETTERS}
        self._forms = sorted(forms.items(), key=lambda item: -len(item[0]))  # what contains another comes first
        self._longest = max(map(len, forms), default=0)

    def redacted(self, text: str) -> str:
        """Return a text with each secret's name in its place."""
        for form, name in self._forms:
            text = text.replace(form, f"[{name}]")
        return text

    @contextmanager
    def follow(self, stream: IO[bytes], log: logging.Logger) -> Iterator[None]:
        """Log a stream's lines until it closes, from a thread; on leaving, wait for the last."""
        thread = threading.Thread(target=self._follow, args=(stream, log), name="refresh", daemon=True)
        thread.start()
        try:
            yield
        finally:
            thread.join(timeout=10)

    def _follow(self, stream: IO[bytes], log: logging.Logger) -> None:
        number, begins = 0, True
        while block := stream.readline(MOST_LINE):
            whole, first = block.endswith(b"\n"), begins
            begins = whole
            if not first:  # the rest of a line that was cut
                continue
            text = block.decode(errors="replace").rstrip("\r\n")
            if not whole and len(block) == MOST_LINE:  # a secret may go on behind the cut
                text = text[: -self._longest or None]
            number += 1
            line = self.redacted(text)
            self.last_line = line[:300] if line.strip() else self.last_line
            if number <= MOST_LINES:
                log.info("refresh: %s", line)
