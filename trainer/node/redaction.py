"""Remove secrets from a command's output, line by line, and from what it tells.

This prevents accidents, not intent: a command can print a secret backwards.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping
from typing import IO
from urllib.parse import quote, quote_plus

FEWEST_LETTERS = 4  # of a secret's line: redacting shorter ones would black out words
FEWEST_OF_BASE64 = (
    8  # of a secret's base64 form without its first and last letters, which depend on the text around it
)


class RedactedStream:
    """Lines of a stream without secrets, even where one spans two blocks."""

    def __init__(self, stream: IO[bytes], redaction: Redaction) -> None:
        self._stream, self._redaction, self._held = stream, redaction, b""

    def readline(self, most: int) -> bytes:
        """Return a redacted line, or a part of one; a possible beginning of a secret is held back. b'' at the
        stream's end.
        """
        while block := self._stream.readline(most):
            ready, self._held = self._redaction.begun(self._held + block)
            if ready:
                return ready
        ready, self._held = self._redaction.redacted_bytes(self._held), b""
        return ready

    def __enter__(self) -> RedactedStream:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()


class Redaction:
    """The secrets to replace by their names."""

    def __init__(self, secrets: Mapping[str, str]) -> None:
        forms: dict[str, str] = {}
        for name, value in secrets.items():
            for line in (value, *value.splitlines()):
                encoded = line.encode(errors="surrogateescape")  # of an environment variable: any bytes
                spelled = [line, quote(encoded), quote(encoded, safe=""), quote_plus(encoded)]
                spelled += [json.dumps(line)[1:-1], repr(line)[1:-1], *_in_base64(encoded)]
                forms |= {form: name for form in spelled if len(form) >= FEWEST_LETTERS}
        # Longest first: one may begin with another.
        shown = {form.encode(errors="surrogateescape"): f"[{name}]".encode() for form, name in forms.items()}
        longest_first = sorted(shown, key=len, reverse=True)
        self._shown, self._longest = shown, max(map(len, shown), default=1)
        self._any = re.compile(b"|".join(map(re.escape, longest_first)) or b"(?!)")

    def redacted(self, text: str) -> str:
        """Return a text with each secret replaced by its name."""
        safe = self.redacted_bytes(text.encode(errors="surrogateescape"))
        return safe.decode(errors="surrogateescape")

    def redacted_bytes(self, text: bytes) -> bytes:
        """Return bytes with each secret replaced by its name."""
        return self._any.sub(lambda found: self._shown[found[0]], text)

    def begun(self, text: bytes) -> tuple[bytes, bytes]:
        """Return the part of a line's beginning that is known, redacted, and the rest as it is, in which a
        secret may begin. A whole line is known.
        """
        known = len(text) if text.endswith(b"\n") else max(0, len(text) - self._longest + 1)
        for found in self._any.finditer(text):
            if found.start() >= known:
                break
            known = max(known, found.end())
        return self.redacted_bytes(text[:known]), text[known:]

    def shows(self, text: str) -> bool:
        """Return whether a text contains a secret."""
        return self.redacted(text) != text


def _in_base64(secret: bytes) -> Iterator[str]:
    """Yield the base64 forms of a secret inside a longer text, such as `user:secret`, at each of three
    offsets.
    """
    for before in range(3):
        text = base64.b64encode(b"\0" * before + secret)
        whole = text[(before * 8 + 5) // 6 : (before + len(secret)) * 8 // 6].decode()
        if len(whole) >= FEWEST_OF_BASE64:
            yield whole
            yield whole.translate(str.maketrans("+/", "-_"))
