"""Files that one process brings into a folder while another works with those that are there.

A file gets its name once it is whole. A document beside the folder lists the files that can't be fetched; it
is replaced every second until no more files come. An agent writes it, a trainer reads it
(`train/inputs/arriving.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trainer.base.errors import DataError
from trainer.base.files import read_plain, whole_file
from trainer.base.strict_json import MOST_TEXT, Unsound, read_object

BEAT_SECONDS = 1.0
MOST_BYTES, MOST_FILES = 64 << 20, 1_000_000


@dataclass(frozen=True, kw_only=True)
class Arrivals:
    """State of the files that are still to come. `beat` grows as long as somebody fetches them."""

    beat: int = 0
    over: bool = False
    failed: Mapping[str, DataError] = field(default_factory=dict)  # name -> why it does not come

    def write(self, path: Path) -> None:
        """Write the document, in place of an earlier one."""
        failed = [{"file": name, **error.as_dict()} for name, error in self.failed.items()]
        with whole_file(path) as new:
            new.write_text(json.dumps({"beat": self.beat, "over": self.over, "failed": failed}), "utf-8")


def read_arrivals(path: Path) -> Arrivals:
    """Read the document. Raises DataError for one that can't be read."""
    try:
        body = read_plain(path, most_bytes=MOST_BYTES)
        fields = read_object(body, most_bytes=MOST_BYTES, name="the list of arrivals")
        failed = {}
        for row in fields.rows("failed", most=MOST_FILES):
            what, why, do = (row.text(key, most=MOST_TEXT) for key in ("what", "why", "do"))
            failed[row.text("file", most=MOST_TEXT)] = DataError(what, why=why, do=do)
        return Arrivals(beat=fields.whole("beat"), over=bool(fields.truth("over")), failed=failed)
    except (OSError, Unsound) as error:
        why = str(getattr(error, "strerror", None) or error)
        raise DataError(f"cannot read {path}", why=why, do="Leave --arriving out.") from error
