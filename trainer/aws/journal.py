"""The journal of a transfer that may be broken off: the parts that have arrived, a line each, so that the
next try sends or fetches only the others.

It is a hint that saves work, never a proof: whoever uses it hashes the bytes before an object or a file gets
its name. A journal that can't be read or written, or that is of another transfer, is as good as none.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

MOST_PARTS = 10_000  # of an upload: S3 user guide, "Amazon S3 multipart upload limits" (looked up 2026-11-27)
_MOST_LINE_BYTES = 1 << 12


class Journal:
    """The parts of one transfer by number, from 1 on. `of` describes the transfer, and is the first line."""

    def __init__(self, path: Path, of: Mapping[str, Any]) -> None:
        self.path, self.of = path, dict(of)
        self.parts: dict[int, dict[str, Any]] = {}
        self._lock = threading.Lock()

    def read(self) -> dict[str, Any] | None:
        """Take in what an earlier try has left, and return its first line; None if there is none of this
        transfer.
        """
        lines = list(self._lines())
        if not lines or any(lines[0].get(name) != value for name, value in self.of.items()):
            return None
        for line in lines[1:]:
            number = line.get("part")
            if isinstance(number, int) and 1 <= number <= MOST_PARTS:
                self.parts[number] = line
        return lines[0]

    def begin(self, **more: Any) -> None:
        """Begin anew, with more facts in the first line."""
        self.parts.clear()
        with suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text(_line({**self.of, **more}), encoding="utf-8")

    def add(self, number: int, **facts: Any) -> None:
        """Note a part that has arrived. Any thread may call it."""
        with self._lock:
            self.parts[number] = facts
            # One write of a line to the end: two that write the same journal don't mix their lines.
            with suppress(OSError), self.path.open("ab", buffering=0) as file:
                file.write(_line({"part": number, **facts}).encode())

    def forget(self) -> None:
        """Remove it: the transfer is done, or can't go on."""
        self.parts.clear()
        with suppress(OSError):
            self.path.unlink()

    def _lines(self) -> list[dict[str, Any]]:
        """Return the lines up to the first that was not written whole."""
        found: list[dict[str, Any]] = []
        with suppress(OSError, ValueError), self.path.open("rb") as file:
            while len(found) <= MOST_PARTS * 2 and (line := file.readline(_MOST_LINE_BYTES)):
                value = json.loads(line)
                if not isinstance(value, dict) or not line.endswith(b"\n"):
                    break
                found.append(value)
        return found


def _line(value: Mapping[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":")) + "\n"
